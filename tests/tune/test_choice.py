"""Rates are compared within rounds: drift cancels, and a spoiled trial hardly counts."""

import pytest

from datapipe.tune.choice import choose, fastest, is_flat, ratio, settled
from datapipe.tune.setting import Setting
from tests.case_files import table

CASES = table("tune/choice")
SETTINGS = {number: Setting(num_workers=number, prefetch_factor=2) for number in (1, 2, 4)}
ALL = list(SETTINGS.values())


def rounds(case):
    return [
        {setting: rate for setting, rate in zip(ALL, row, strict=True) if rate}
        for row in case["rounds"] * case.get("times", 1)
    ]


@pytest.mark.parametrize("case", CASES["ratios"])
def test_rates_are_compared_within_rounds(case):
    seen = ratio(rounds(case), SETTINGS[2], SETTINGS[1])
    assert case["found"] == (seen and [seen.low, seen.median, seen[-1]])


@pytest.mark.parametrize("case", CASES["choices"])
def test_the_smallest_is_chosen_that_is_not_measurably_slower(case):
    assert fastest(rounds(case), ALL).num_workers == case["best"]
    assert choose(rounds(case), ALL).num_workers == case["chosen"]


@pytest.mark.parametrize("case", CASES["dropped"])
def test_settings_are_dropped_when_more_rounds_would_not_change_it(case):
    found = {setting.num_workers: why for setting, why in settled(rounds(case), ALL).items()}
    assert found.keys() == case["out"].keys()
    assert all(why.startswith(case["out"][workers]) for workers, why in found.items())


@pytest.mark.parametrize("case", CASES["flat"])
def test_numbers_of_workers_are_doubled_until_two_in_a_row_are_no_faster(case):
    assert is_flat(case["rates"]) == case["flat"]
