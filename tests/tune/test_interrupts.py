"""Ctrl-C ends a sweep with what was known by then."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from datapipe.tune.job import tune_workers

from .conftest import CORES, tune_on
from .synthetic import Clock, Loader


def test_interrupting_keeps_what_was_measured(caplog):
    clock = Clock()
    number = 0

    def make(**given: Any) -> Loader:
        nonlocal number
        number += 1
        if number == 12:
            raise KeyboardInterrupt
        return Loader(CORES, clock, **given)

    result = tune_on(clock, make)
    assert result.interrupted
    assert not result.settled
    assert len(result.trials) == 11
    assert result.num_workers >= 2
    assert "these are the results so far" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_swallows_ends_the_sweep_all_the_same():
    clock = Clock()
    made: list[str] = []
    before = signal.getsignal(signal.SIGINT)

    class Dying:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)  # until it is delivered, and raises where nobody can catch it

    def make(**given: Any) -> Loader:
        made.append("loader")
        if len(made) == 4:
            Dying()
        return Loader(CORES, clock, **given)

    result = tune_on(clock, make)
    assert result.interrupted
    assert (len(result.trials), len(made)) == (4, 4)
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupting_before_anything_is_known_is_an_interrupt():
    def make(**_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune_workers(make)


def test_an_interrupt_within_a_batch_closes_the_loader():
    clock = Clock()
    made: list[Loader] = []

    class Interrupted(Loader):
        def __iter__(self) -> Iterator[int]:
            yield 1
            raise KeyboardInterrupt

    def make(**given: Any) -> Loader:
        kind = Interrupted if len(made) == 3 else Loader
        made.append(kind(CORES, clock, **given))
        return made[-1]

    assert tune_on(clock, make).interrupted
    assert [loader.closed for loader in made] == [1] * 4
