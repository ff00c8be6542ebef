"""Blocks of a plan that ranks share in a folder."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from datapipe.loader.schedule.block_cache import BlockFolder, PlannedBlocks
from datapipe.plan import EpochPlan, PlanOptions, Position, Sizes, Source, walk
from tests.waiting import PATIENCE

RANKS = 6


def make_plan():
    def measure(samples):
        tokens = 1 + samples * 7919 % 60
        zeros = np.zeros_like(tokens)
        return Sizes(tokens=tokens, labels=tokens, images=zeros, vision=zeros, rows=zeros)

    options = PlanOptions(shuffle=True, seed=1, pack=64, group=RANKS, block=500)
    return EpochPlan(Source.of_dataset(2000, options, measure=measure), options, 0)


def order_of(blocks):
    steps = walk(blocks, Position(0), share=RANKS)
    return [int(sample) for step in steps for sample in step.units.samples]


def test_ranks_that_come_to_a_block_together_plan_it_once(tmp_path):
    start = threading.Barrier(RANKS)
    planned = []

    def rank(number):
        plan = make_plan()
        form = plan.form

        def slowly(block):
            planned.append(block)
            time.sleep(0.05)
            return form(block)

        plan.form = slowly
        start.wait(PATIENCE)
        folder = BlockFolder(tmp_path, "same", patience=PATIENCE)
        return order_of(PlannedBlocks(plan, folder, ahead=number % 2 == 0))

    with ThreadPoolExecutor(RANKS) as pool:
        orders = list(pool.map(rank, range(RANKS)))
    assert planned == [0, 1, 2, 3]
    expected = order_of(PlannedBlocks(make_plan(), None, ahead=False))
    assert all(order == expected for order in orders)
    assert {path.suffix for path in tmp_path.rglob("*.*")} == {".npz"}


def test_a_rank_that_died_while_it_planned_stops_no_other(tmp_path):
    folder = BlockFolder(tmp_path, "same", patience=0.1)
    expected = order_of(PlannedBlocks(make_plan(), folder, ahead=False))
    block = sorted(tmp_path.rglob("*.npz"))[1]
    claim = block.rename(block.with_suffix(".claim"))
    assert order_of(PlannedBlocks(make_plan(), folder, ahead=True)) == expected
    assert block.exists()
    assert not claim.exists()


def test_a_rank_that_fails_to_plan_leaves_the_block_to_others(tmp_path):
    folder = BlockFolder(tmp_path, "same")

    def fails():
        raise ValueError("cannot plan")

    with pytest.raises(ValueError, match="cannot plan"):
        folder.get(0, 0, 0, fails)
    assert not list(tmp_path.rglob("*.claim"))  # which others would wait for
    units = make_plan().form(0)
    assert folder.get(0, 0, 0, lambda: units) is units
