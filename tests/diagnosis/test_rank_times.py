"""The same steps on several ranks: what is exchange, and who is waited for."""

import pytest

from datapipe.diagnosis.rank_times import RankStep, compare_ranks


def step(*ranks):
    """A step of 100 ms: each rank's wait for its batch, and exchange."""
    return {rank: RankStep(0.1, *times) for rank, times in enumerate(ranks)}


def test_equal_ranks_only_exchange():
    steps = {turn: step((0.0, 0.07), (0.0, 0.07)) for turn in (5, 20)}
    found = compare_ranks(steps, 0)
    assert found is not None
    assert (found.exchange, found.waiting, found.holding) == (pytest.approx(0.7), 0.0, 0.0)


@pytest.mark.parametrize("waited", [0.0, 0.06])
def test_the_rank_that_never_waits_is_the_slowest(waited):
    steps = {turn: step((0.0, 0.07), (0.0, 0.07), (waited, 0.01)) for turn in (5, 20, 80)}
    one, late = compare_ranks(steps, 0), compare_ranks(steps, 2)
    assert one is not None
    assert late is not None
    assert one.slowest == late.slowest == 2
    assert one.exchange == late.exchange == pytest.approx(0.1)
    assert (one.waiting, one.holding) == (pytest.approx(0.6), 0.0)
    assert (late.waiting, late.holding) == (0.0, pytest.approx(0.6))
    assert one.late == late.late == pytest.approx(0.06)
    assert one.for_data == late.for_data == pytest.approx(1.0 if waited else 0.0)


def test_nobody_is_named_if_it_is_another_one_each_time():
    shifts = [(0.05, 0.01, 0.05), (0.01, 0.05, 0.05), (0.05, 0.05, 0.01)]
    steps = {turn: step(*((0.0, own) for own in shift)) for turn, shift in enumerate(shifts)}
    found = compare_ranks(steps, 0)
    assert found is not None
    assert found.slowest is None
    assert found.waiting == pytest.approx(0.4)


def test_only_steps_that_others_recorded_too_count():
    steps = {5: step((0.0, 0.07)), 20: {1: RankStep(0.1, 0.0, 0.0)}}
    assert compare_ranks(steps, 0) is None
    assert compare_ranks({}, 0) is None
    steps[80] = step((0.0, 0.03), (0.0, 0.03))
    found = compare_ranks(steps, 0)
    assert found is not None
    assert found.exchange == pytest.approx(0.3)
