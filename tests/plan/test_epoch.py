"""Blocks and units of an epoch, and groups of units of near-equal cost."""

import json

import numpy as np
import pytest

from datapipe.errors import PlanError
from datapipe.plan.epoch import EpochPlan, Source
from datapipe.plan.groups import lay_out
from datapipe.plan.options import PlanOptions
from datapipe.plan.steps import Position, walk
from tests.case_files import cases


def test_order_changes_with_the_epoch_and_with_the_seed(blocks):
    orders = {
        tuple(blocks(50, epoch, seed=seed).plan.samples(0, 50).tolist())
        for seed in (0, -1, 2**63 - 1, -(2**63))
        for epoch in range(4)
    }
    assert len(orders) == 16
    assert blocks(7, epoch=4, shuffle=False).plan.samples(2, 6).tolist() == [2, 3, 4, 5]


def test_a_block_is_made_of_its_own_samples_whatever_lies_around_it(blocks):
    plan = blocks(350, epoch=2, pack=64, block=100).plan
    assert plan.blocks == 4
    for block in range(4):
        expected = plan.samples(100 * block, min(100 * block + 100, 350))
        assert sorted(plan.form(block).samples.tolist()) == sorted(expected.tolist())


def test_neighbours_have_equal_cost_in_every_step_also_across_blocks(blocks):
    def spread(group):
        made = blocks(4000, pack=64, group=group, block=500)
        images = [
            step.units.total(step.units.sizes.images).astype(float)
            for step in walk(made, Position(0), share=8)
        ]
        return float(np.mean([i.max() - i.mean() for i in images if len(i) == 8]))

    assert spread(8) < 0.1 * spread(1)


def test_packs_without_token_counts_are_refused():
    options = PlanOptions(shuffle=True, seed=0, pack=10)
    with pytest.raises(PlanError, match=r"TextSpec"):
        EpochPlan(Source.of_dataset(5, options), options, epoch=0)


@pytest.mark.parametrize(("options", "message"), cases("plan/options"))
def test_impossible_options_are_refused(options, message):
    with pytest.raises(PlanError, match=message):
        PlanOptions(**{"shuffle": True, "seed": 0, **json.loads(options)})


def costs(units, seed=0):
    """Costs like those of packs: text within a fifth, 3 to 25 images."""
    random = np.random.default_rng(seed)
    text = (2e8 + 5e7 * random.random(units) ** 2).astype(np.int64)
    return text, random.normal(14, 5, units).clip(3, 25).astype(np.int64)


def imbalance(cost, order, share):
    steps = cost[order[: len(order) // share * share]].reshape(-1, share)
    return float(((steps.max(1) - steps.mean(1)) / steps.max(1)).mean())


@pytest.mark.parametrize("group", [8, 64])
def test_the_units_of_a_group_cost_about_the_same_in_text_and_images(group):
    text, images = costs(6400)
    order = lay_out(text, images, group=group, phase=0, key=1)
    assert imbalance(text, order, group) < 0.03
    assert imbalance(images, order, group) < 0.03
    shuffled = lay_out(text, images, group=1, phase=0, key=1)
    assert imbalance(text, shuffled, group) > 0.08
    assert imbalance(images, shuffled, group) > 0.3


@pytest.mark.parametrize("share", [2, 4, 8, 16, 32])
def test_steps_that_divide_a_group_are_as_equal_as_groups_of_their_size(share):
    text, images = costs(6400)
    own = lay_out(text, images, group=share, phase=0, key=1)
    order = lay_out(text, images, group=64, phase=0, key=1)
    for cost in (text, images):
        assert imbalance(cost, order, share) < 1.2 * imbalance(cost, own, share)


def test_groups_come_in_random_order_and_so_do_the_units_inside():
    text = np.arange(1, 6401)
    order = lay_out(text, text, group=8, phase=0, key=5)
    groups = text[order].reshape(-1, 8)
    assert abs(np.corrcoef(groups.mean(1), np.arange(800))[0, 1]) < 0.15
    assert abs(np.corrcoef(groups.argmax(1), np.arange(800))[0, 1]) < 0.15
    assert np.bincount(groups.argmax(1), minlength=8).min() > 60
    other = lay_out(text, text, group=8, phase=0, key=6)
    assert order.tolist() != other.tolist()
    assert lay_out(text[:0], text[:0], group=8, phase=4, key=5).tolist() == []


def test_a_step_over_the_border_of_two_blocks_is_balanced_too():
    parts, ends = [], [0]
    for block in range(12):
        cost = np.stack(costs(1000 + block, seed=block))
        parts.append(cost[:, lay_out(*cost, group=64, phase=ends[-1] % 64, key=block)])
        ends.append(ends[-1] + 1000 + block)
    steps = np.concatenate(parts, axis=1)[:, : ends[-1] // 64 * 64].reshape(2, -1, 64)
    across = steps[:, np.array(ends[1:-1]) // 64]
    assert ((across.max(2) - across.mean(2)) / across.max(2)).mean(1).max() < 0.1
