"""States: what they say, and what cannot be continued."""

import json
from typing import Any

import numpy as np
import pytest

from datapipe import DatapipeError, Loader, PlanError, StateMismatch
from datapipe.index.files.sealed_json import sum_of
from datapipe.testing import assert_resumes_exactly, assert_same_batches, valid_keys


def test_the_check_itself_notices_a_loader_that_does_not_resume(make):
    class Forgetful(Loader):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            others = {name: value for name, value in state.items() if name != "crc32"}
            others["unit"] = max(0, others["unit"] - 1)
            super().load_state_dict({**others, "crc32": sum_of(others)})

    def forgetful(**more: Any) -> Loader:
        loader = make(**more)
        loader.__class__ = Forgetful
        return loader

    with pytest.raises(AssertionError):
        assert_resumes_exactly(forgetful)


def test_state_survives_break_and_the_next_loop_starts_the_epoch_over(make):
    loader = make(batch_size=4)
    for step, batch in enumerate(loader):
        if step == 0:
            first = batch["key"]
        if step == 2:
            break
    assert loader.state_dict()["unit"] == 12
    assert next(iter(loader))["key"] == first


def test_after_the_last_batch_the_state_is_the_next_epoch(make):
    loader = make(batch_size=10)
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    state = loader.state_dict()
    assert (state["epoch"], state["block"], state["unit"]) == (1, 0, 0)
    assert next(iterator, None) is None
    assert loader.state_dict() == state


def test_state_of_an_earlier_step_serves_wrappers_that_fetch_ahead(make):
    loader = make(batch_size=10)
    iterator = iter(loader)
    states = [loader.state_dict()]
    for _ in range(len(loader)):
        next(iterator)
        states.append(loader.state_dict())
    assert [loader.state_dict(step=step) for step in range(len(states))] == states
    with pytest.raises(PlanError, match="yielded 4"):
        loader.state_dict(step=5)


def test_state_of_a_step_counts_from_where_the_iterator_began(make):
    loader = make(batch_size=5)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert loader.state_dict(step=0) == state
    iterator = iter(loader)
    next(iterator)
    assert loader.state_dict(step=0)["unit"] == 5
    assert loader.state_dict(step=1)["unit"] == 10


def test_set_epoch_keeps_the_position_in_the_current_epoch_alone(make):
    state = _state_after(make(), steps=3)
    resumed = make()
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    assert_same_batches(list(resumed), list(make())[3:])
    jumped, counted = make(), make()
    jumped.load_state_dict(state)
    jumped.set_epoch(2)  # from its beginning
    list(counted), list(counted)
    assert_same_batches(jumped, counted)


def test_batch_size_may_change_on_resume(make):
    before = make(batch_size=4)
    begun = _take(before, 3)
    after = make(batch_size=7)
    after.load_state_dict(before.state_dict())
    assert valid_keys(begun) + valid_keys(after) == valid_keys(make(batch_size=1))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 99},
        {"plan_version": 99},
        {"fingerprint": "0" * 64},
        {"unit": 37},
        {"unit": -1},
        {"epoch": -1},
        *({"plan": None}, {"unit": "5"}, {"unit": 5.5}, {"block": -1}, {"fingerprint": 5}),
    ],
    ids=str,
)
def test_a_state_that_cannot_be_continued_is_refused(make, change):
    loader = make()
    with pytest.raises(StateMismatch):
        loader.load_state_dict({**loader.state_dict(), **change})
    with pytest.raises(StateMismatch):
        loader.load_state_dict({})


def _take(loader: Loader, steps: int) -> list[Any]:
    iterator = iter(loader)
    return [next(iterator) for _ in range(steps)]


def _state_after(loader: Loader, steps: int) -> dict[str, Any]:
    _take(loader, steps)
    return loader.state_dict()


def test_setting_another_epoch_inside_a_loop_ends_the_loop(make):
    loader = make()
    iterator = iter(loader)
    next(iterator)
    loader.set_epoch(7)
    with pytest.raises(DatapipeError, match="closed"):
        next(iterator)
    assert (loader.state_dict()["epoch"], loader.state_dict()["unit"]) == (7, 0)


def test_the_state_is_small_json_also_with_integers_of_numpy(make):
    loader = make(seed=np.int64(3), batch_size=np.int32(4))
    loader.set_epoch(np.int64(2))
    next(iter(loader))
    text = json.dumps(loader.state_dict())
    assert json.loads(text) == loader.state_dict()
    assert len(text) < 1000
