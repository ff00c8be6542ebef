"""Ctrl-C ends a sweep with what was known by then."""

import os
import signal
import time

import pytest

from datapipe.tune.job import tune_workers

from .conftest import CORES, tune_on
from .synthetic import Clock, Loader


class Interrupted(Loader):
    def __iter__(self):
        yield 1
        raise KeyboardInterrupt


class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)  # until it is delivered, and raises where nobody can catch it


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("moment", "number", "trials"), [("making", 11, 11), ("a batch", 3, 3), ("swallowed", 3, 4)]
)
def test_what_was_measured_is_kept_and_every_loader_is_closed(caplog, moment, number, trials):
    clock = Clock()
    made: list[Loader] = []
    before = signal.getsignal(signal.SIGINT)

    def make(**given):
        now = moment if len(made) == number else ""
        if now == "making":
            raise KeyboardInterrupt
        if now == "swallowed":
            Dying()
        made.append((Interrupted if now == "a batch" else Loader)(CORES, clock, **given))
        return made[-1]

    result = tune_on(clock, make)
    assert result.interrupted
    assert not result.settled
    assert len(result.trials) == trials
    assert result.num_workers >= (2 if trials > 9 else 0)
    assert "these are the results so far" in caplog.text
    assert {loader.closed for loader in made} == {1}
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupting_before_anything_is_known_is_an_interrupt():
    def make(**_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune_workers(make)
