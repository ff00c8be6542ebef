"""Blocks and units of an epoch."""

import json

import numpy as np
import pytest

from datapipe.errors import PlanError
from datapipe.plan.epoch import EpochPlan, Source
from datapipe.plan.options import PlanOptions
from tests.case_files import cases


def samples_of(plan):
    return plan.samples(0, plan.source.count).tolist()


def test_without_shuffling_the_order_is_that_of_the_dataset():
    options = PlanOptions(shuffle=False, seed=3)
    plan = EpochPlan(Source.of_dataset(7, options), options, epoch=4)
    assert plan.samples(2, 6).tolist() == [2, 3, 4, 5]


def test_order_changes_with_the_epoch_and_with_the_seed():
    orders = set()
    for seed in (0, -1, 2**63 - 1, -(2**63)):
        options = PlanOptions(shuffle=True, seed=seed)
        source = Source.of_dataset(50, options)
        orders |= {tuple(samples_of(EpochPlan(source, options, epoch))) for epoch in range(4)}
    assert len(orders) == 16


def test_a_block_is_made_of_its_own_samples_whatever_lies_around_it(source):
    options = PlanOptions(shuffle=True, seed=0, pack=64, block=100)
    plan = EpochPlan(source(350, options), options, epoch=2)
    assert plan.blocks == 4
    for block in range(4):
        expected = plan.samples(100 * block, min(100 * block + 100, 350))
        assert sorted(plan.form(block).samples.tolist()) == sorted(expected.tolist())


def test_laying_out_changes_the_order_of_units_alone(source):
    options = PlanOptions(shuffle=True, seed=0, pack=64, group=8)
    plan = EpochPlan(source(500, options), options, epoch=0)
    formed = plan.form(0)
    laid = plan.lay_out(formed, 0, before=3)
    assert sorted(map(tuple, _split(laid))) == sorted(map(tuple, _split(formed)))
    assert _split(laid) != _split(formed)


def test_neighbours_have_equal_cost_in_every_step_also_across_blocks(blocks):
    from datapipe.plan.steps import Position, walk

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


def _split(units):
    return [part.tolist() for part in np.split(units.samples, units.offsets[1:-1])]
