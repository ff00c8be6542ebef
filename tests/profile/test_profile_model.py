"""Rates follow from what a sample costs, and from what it runs on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from datapipe.profile.model import SampleCost, Setup, predict, repairmen

FOUR = Setup(workers=4, cores=4, scaling={1: 1.0, 2: 2.0, 4: 3.0})
COST = SampleCost(cpu={"read": 0.001, "decode": 0.003}, caller_cpu={"collate": 0.0001})


def rate(cost: SampleCost = COST, workers: int = 4) -> float:
    return predict(cost, replace(FOUR, workers=workers))


def test_speed_is_what_was_measured_and_between_that_a_line() -> None:
    assert [FOUR.speed(threads) for threads in (0, 0.5, 1, 2, 3, 4, 9)] == [
        *(0.0, 0.5, 1.0, 2.0, 2.5, 3.0, 3.0)
    ]


def test_one_worker_does_one_sample_after_the_other() -> None:
    assert repairmen(replace(FOUR, workers=1), 0.004, 0.006) == pytest.approx(100)
    assert rate(workers=1) == pytest.approx(250)


def test_cores_bound_many_workers() -> None:
    assert predict(COST, replace(FOUR, workers=64)) == pytest.approx(3 / 0.0041)


def test_workers_that_mostly_wait_scale_beyond_the_cores() -> None:
    waiting = SampleCost(cpu={"decode": 0.0001}, wait={"read": 0.1})
    rates = [rate(waiting, workers=workers) for workers in (1, 8, 64)]
    assert rates == pytest.approx([10, 80, 640], rel=0.05)


@pytest.mark.parametrize("wait", [0.0, 0.001, 0.01])
def test_more_workers_never_make_it_slower_nor_faster_than_the_cores(wait: float) -> None:
    rates = [repairmen(replace(FOUR, workers=n), 0.004, wait) for n in range(1, 40)]
    assert all(b >= a * (1 - 1e-9) for a, b in pairwise(rates))
    assert rates[-1] <= 3 / 0.004 * (1 + 1e-9)


def test_what_one_thread_has_to_do_bounds_the_whole() -> None:
    slow = replace(COST, caller_wait={"transfer": 0.01})
    assert predict(slow, FOUR) == pytest.approx(1 / 0.0101)


def test_the_lock_bounds_threads_and_each_process_for_itself() -> None:
    locked = SampleCost(cpu={"transform": 0.01}, locked=0.01)
    assert rate(locked) == pytest.approx(100)
    assert predict(locked, replace(FOUR, processes=True)) == pytest.approx(300)


def test_storage_bounds_the_whole() -> None:
    assert predict(COST, replace(FOUR, storage=50.0)) == 50.0


def test_without_workers_everything_is_done_in_turn() -> None:
    cost = replace(COST, wait={"read": 0.0059})
    assert rate(cost, workers=0) == pytest.approx(100)


def test_a_stage_that_costs_nothing_is_as_if_it_were_not_there() -> None:
    assert rate(COST.scaled({"decode": 0.0})) == pytest.approx(
        rate(replace(COST, cpu={"read": 0.001}))
    )
    assert rate(COST.scaled({"decode": 0.5})) > rate()
