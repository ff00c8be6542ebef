"""Percentiles and timelines of constant size."""

import random

import numpy as np
import pytest

from datapipe.monitor.durations import Durations, Timeline


@pytest.mark.parametrize("scale", [50, 10_000_000, 10**12])
def test_percentiles_are_those_of_the_durations(scale):
    draw = random.Random(scale)
    values = [int(draw.expovariate(1 / scale)) for _ in range(20_000)]
    durations = Durations()
    for value in values:
        durations.add(value)
    timing = durations.timing()
    exact = np.percentile(values, [50, 90, 99]) / 1e9
    assert [timing.p50, timing.p90, timing.p99] == pytest.approx(exact, rel=0.03, abs=1e-9)
    assert timing.total == pytest.approx(sum(values) / 1e9)
    assert timing.longest == max(values) / 1e9
    assert timing.count == len(values)


def test_durations_out_of_range_are_counted_and_none_is_zero():
    durations = Durations()
    assert durations.timing().p99 == durations.timing().longest == 0.0
    for value in (-5, 2**70):
        durations.add(value)
    assert durations.count == 2
    assert durations.quantile(0.01) < 1e-9
    for exponent in range(50):  # alone, its own median to the width of a bucket
        for value in (2**exponent - 1, 2**exponent, 2**exponent + 1):
            durations = Durations()
            durations.add(value)
            assert durations.quantile(0.5) * 1e9 == pytest.approx(value, rel=0.016)


@pytest.mark.parametrize("turns", [0, 1, 7, 8, 9, 1000, 12_345])
def test_a_timeline_keeps_all_time_in_few_stretches(turns):
    timeline = Timeline(most=8)
    for turn in range(turns):
        timeline.add(turn, 10**9, 0, 2 * 10**9, turn * 10**9)
    stretches = timeline.stretches()
    assert len(stretches) <= 8
    assert sum(stretch.turns for stretch in stretches) == turns
    assert sum(stretch.wait for stretch in stretches) == pytest.approx(turns)
    assert sum(stretch.rest for stretch in stretches) == pytest.approx(sum(range(turns)))
    firsts = [stretch.first for stretch in stretches]
    assert firsts == sorted(firsts)
    assert firsts[:1] == [0][:turns]
    # All but the last are equally long, so that the axis of a picture is even.
    assert len({stretch.turns for stretch in stretches[:-1]}) <= 1
