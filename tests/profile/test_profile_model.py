"""Rates follow from what a sample costs, and from what it runs on."""

from dataclasses import replace
from itertools import pairwise

import pytest

from datapipe.profile.forecast import SampleCost, Setup, predict, repairmen
from tests.case_files import table

RATES = table("profile/rates")
FOUR = Setup(workers=4, cores=4, scaling={1: 1.0, 2: 2.0, 4: 3.0})


def test_speed_is_what_was_measured_and_between_that_a_line():
    assert [FOUR.speed(threads) for threads in (0, 0.5, 1, 2, 3, 4, 9)] == [
        *(0.0, 0.5, 1.0, 2.0, 2.5, 3.0, 3.0)
    ]


@pytest.mark.parametrize("name", RATES)
def test_rates_follow_from_costs_and_what_is_scarce(name):
    case = RATES[name]
    rate = predict(SampleCost(**case["cost"]), replace(FOUR, **case.get("setup", {})))
    assert rate == pytest.approx(case["rate"], rel=0.05)


@pytest.mark.parametrize("wait", [0.0, 0.001, 0.01])
def test_more_workers_never_make_it_slower_nor_faster_than_the_cores(wait):
    rates = [repairmen(replace(FOUR, workers=n), 0.004, wait) for n in range(1, 40)]
    assert all(b >= a * (1 - 1e-9) for a, b in pairwise(rates))
    assert rates[-1] <= 3 / 0.004 * (1 + 1e-9)
