"""Blocks and units of an epoch."""

import json

import numpy as np
import pytest

from datapipe.errors import PlanError
from datapipe.plan.epoch import EpochPlan, Source
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
