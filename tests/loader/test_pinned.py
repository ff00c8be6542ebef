"""Results that are copied in a thread: errors in their turn, and what is there without a wait."""

import threading

import pytest

from datapipe.loader.workers.executor import PinnedResults
from datapipe.workers.threads import ThreadPool
from tests.waiting import PATIENCE


def test_an_error_of_a_copy_is_raised_in_its_turn():
    pinned = PinnedResults(ThreadPool(abs, 2).run(range(5)), lambda number: 1 // (2 - number))
    assert [next(pinned), next(pinned)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(pinned)
    pinned.close()


def test_an_error_of_the_results_is_raised_in_its_turn():
    def numbers():
        yield from range(3)
        raise LookupError("no more")

    pinned = PinnedResults(ThreadPool(abs, 2).run(numbers()), abs)
    assert [next(pinned) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(LookupError, match="no more"):
        next(pinned)
    pinned.close()


def test_a_copy_that_is_made_is_there_without_waiting():
    copying = threading.Event()

    def copy(number):
        copying.wait(PATIENCE)
        return number

    pinned = PinnedResults(ThreadPool(abs, 1).run(range(1)), copy)
    assert not pinned.wait(0.01)
    copying.set()
    assert pinned.wait(PATIENCE)
    assert pinned.wait(0)
    assert list(pinned) == [0]
    assert pinned.wait(0)  # for the end
    pinned.close()
