"""States: what they say, and what cannot be continued."""

import json

import numpy as np
import pytest

from datapipe import DatapipeError, Loader, PlanError, StateMismatch
from datapipe.index.files.sealed_json import sum_of
from datapipe.testing import assert_resumes_exactly, assert_same_batches, valid_keys

from .test_runs import take


def test_the_check_itself_notices_a_loader_that_does_not_resume(make):
    class Forgetful(Loader):
        def load_state_dict(self, state):
            others = {name: value for name, value in state.items() if name != "crc32"}
            others["unit"] = max(0, others["unit"] - 1)
            super().load_state_dict({**others, "crc32": sum_of(others)})

    def forgetful(**more):
        loader = make(**more)
        loader.__class__ = Forgetful
        return loader

    with pytest.raises(AssertionError):
        assert_resumes_exactly(forgetful)


def test_a_state_is_that_of_a_step_and_after_the_last_batch_of_the_next_epoch(make):
    loader = make(batch_size=10)
    iterator = iter(loader)
    states = [loader.state_dict()]
    for _ in range(len(loader)):
        next(iterator)
        states.append(loader.state_dict())
    assert [states[-1][name] for name in ("epoch", "block", "unit")] == [1, 0, 0]
    # Of an earlier step, for wrappers that fetch ahead.
    assert [loader.state_dict(step=step) for step in range(len(states))] == states
    with pytest.raises(PlanError, match="yielded 4"):
        loader.state_dict(step=5)
    assert next(iterator, None) is None
    assert loader.state_dict() == states[-1]


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
    begun, resumed, jumped, counted = (make() for _ in range(4))
    take(begun, 3)
    for loader, epoch in ((resumed, 0), (jumped, 2)):
        loader.load_state_dict(begun.state_dict())
        loader.set_epoch(epoch)
    assert_same_batches(list(resumed), list(make())[3:])
    list(counted), list(counted)
    assert_same_batches(jumped, counted)


def test_batch_size_may_change_on_resume(make):
    before, after = make(batch_size=4), make(batch_size=7)
    begun = take(before, 3)
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
