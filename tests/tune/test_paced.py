"""At the speed of training, the smallest setting is taken that keeps it waiting little enough."""

from dataclasses import replace

import pytest

from .conftest import CORES, WAITS, chosen, row, tune_on
from .synthetic import Clock, Loader


def test_training_gets_what_suffices_and_how_much_room_is_left(sweep):
    result = sweep(WAITS, step_time=0.02)
    assert chosen(result) == (4, 2)
    assert result.room == pytest.approx(0.02 * 4 / 0.05, rel=0.1)
    assert result.sufficient
    assert result.waiting <= 0.01
    assert "keeps training waiting at most 1.0% of its time" in result.reason
    assert row(result, 1).out == "makes 0.40 of what training takes"


def test_where_nothing_suffices_the_fastest_is_taken_and_that_is_said(sweep):
    result = sweep(CORES, step_time=0.005)
    assert result.sufficient is False
    assert result.num_workers >= 2
    assert result.room == pytest.approx(0.2, rel=0.1)
    assert result.reason.startswith("no setting keeps waiting under 1.0% with steps of 5 ms")


def test_waiting_that_no_setting_shortens_gives_the_smallest(sweep):
    result = sweep(replace(WAITS, handover=0.001), step_time=0.02)
    assert chosen(result) == (4, 2)
    assert result.sufficient is False
    assert result.waiting == pytest.approx(1 / 21, rel=0.05)
    assert "larger ones hardly shorten it" in result.reason


def test_a_step_that_is_given_is_called_with_batches_and_measured():
    clock = Clock()
    seen: list[int] = []

    def train(batch):
        seen.append(batch)
        clock.sleep(0.02)

    result = tune_on(clock, lambda **given: Loader(WAITS, clock, **given), train=train)
    assert chosen(result) == (4, 2)
    assert result.step_time == pytest.approx(0.02)
    assert len(seen) > 40
