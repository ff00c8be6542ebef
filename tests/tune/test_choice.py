"""Rates are compared within rounds: drift cancels, and a spoiled trial hardly counts."""

from collections.abc import Sequence

import pytest

from datapipe.tune.choice import choose, fastest, is_flat, ratio, settled
from datapipe.tune.setting import Setting

WORKERS = (1, 2, 4)
SETTINGS = {number: Setting(num_workers=number, prefetch_factor=2) for number in WORKERS}
ALL = list(SETTINGS.values())

Table = Sequence[Sequence[float | None]]


def rounds(table: Table) -> list[dict[Setting, float]]:
    """Rates of 1, 2 and 4 workers in each round; None for those that took no part."""
    return [
        {SETTINGS[number]: rate for number, rate in zip(WORKERS, row, strict=True) if rate}
        for row in table
    ]


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ([(10, 20, 20), (7, 14, 14), (5, 10, 10)], (2.0, 2.0, 3)),  # drift cancels
        ([(10, 20, 20)] * 5 + [(10, 7, 20)], (2.0, 2.0, 6)),  # a spoiled trial hardly counts
        ([(10, 20, None), (None, 5, 5), (None, 6, 6)], (2.0, 2.0, 1)),  # in which both took part
        ([(None, 5, 5)], None),
    ],
)
def test_rates_are_compared_within_rounds(table, found):
    seen = ratio(rounds(table), SETTINGS[2], SETTINGS[1])
    assert found == (seen and (seen.low, seen.median, seen[-1]))


@pytest.mark.parametrize(
    ("table", "best", "chosen"),
    [
        ([(10, 20, 20)] * 6, 2, 2),
        ([(10, 20, 20.4)] * 6, 4, 2),  # within the margin
        ([(10, 20, 22)] * 6, 4, 4),
        ([(10, 20, 12)] * 6, 2, 2),
        ([(10, 20, 26), (10, 26, 21), (10, 20, 23), (10, 23, 20)], 4, 2),  # within the spread
        ([(10, 20, 26)] * 4, 4, 4),
        ([(19.9, 20, 20)] * 4, 2, 1),
        ([(10, 10.5, 11)], 4, 1),  # one round tells little
        ([(10, 30, 32)], 4, 2),
        ([(5, 10, 10), (10, 20, 20), (15, 30, 30)], 2, 2),
    ],
)
def test_the_smallest_is_chosen_that_is_not_measurably_slower(table, best, chosen):
    assert fastest(rounds(table), ALL).num_workers == best
    assert choose(rounds(table), ALL).num_workers == chosen


SPREAD = [(10, 20, 26), (10, 26, 21), (10, 20, 23), (10, 23, 20)]


@pytest.mark.parametrize(
    ("table", "out"),
    [
        # Once suffices for what is slower by far, twice for what is slower by a third.
        ([(3, 20, 20)], {1: "85% slower than 2 workers, prefetch 2"}),
        ([(10, 20, 20)], {}),
        ([(10, 20, 20)] * 2, {1: "50% slower than 2 workers, prefetch 2"}),
        ([(16, 20, 20)] * 3, {}),
        ([(16, 20, 20)] * 5, {1: "20% slower than 2 workers, prefetch 2"}),
        # A larger one is dropped once it is sure to be no faster.
        ([(3, 20, 19)] * 5, {1: "85% slower than 2 workers, prefetch 2", 4: "not faster than"}),
        ([(3, 20, 20.2)] * 5, {1: "85% slower than 4 workers, prefetch 2"}),
        ([(3, 20, 20.2)] * 40, {1: "85% slower than 4 workers, prefetch 2", 4: "not faster than"}),
        ([(3, *row[1:]) for row in SPREAD], {1: "86% slower than 4 workers, prefetch 2"}),
    ],
)
def test_settings_are_dropped_when_more_rounds_would_not_change_it(table, out):
    found = {setting.num_workers: why for setting, why in settled(rounds(table), ALL).items()}
    assert found.keys() == out.keys()
    assert all(why.startswith(out[workers]) for workers, why in found.items())


@pytest.mark.parametrize(
    ("rates", "flat"),
    [
        ([], False),
        ([10, 10], False),
        ([10, 9, 20], False),
        ([10, 9, 8], True),
        ([10, 20, 21, 21], True),
        ([10, 20, 21, 23], False),
        ([10, 20, 40, 40], False),
    ],
)
def test_numbers_of_workers_are_doubled_until_two_in_a_row_are_no_faster(rates, flat):
    assert is_flat(rates) == flat
