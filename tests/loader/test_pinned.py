"""Results that are copied in a thread: in order, and errors in their turn."""

import threading

import pytest

from datapipe.loader.workers.executor import PinnedResults
from datapipe.workers.inline import InlinePool
from datapipe.workers.threads import ThreadPool
from tests.waiting import PATIENCE


@pytest.fixture(params=["inline", "threads"])
def results(request):
    def numbers():
        yield from range(5)
        raise LookupError("no more")

    if request.param == "inline":
        return InlinePool(abs).run(numbers())
    return ThreadPool(abs, 2).run(numbers())


def test_all_results_are_copied_in_order_in_another_thread(results):
    pinned = PinnedResults(results, lambda number: (number, threading.get_ident()))
    copied = [next(pinned) for _ in range(5)]
    assert [number for number, _ in copied] == list(range(5))
    assert {thread for _, thread in copied}.isdisjoint({threading.get_ident()})
    with pytest.raises(LookupError, match="no more"):
        next(pinned)
    pinned.close()


def test_an_error_of_a_copy_is_raised_in_its_turn():
    pinned = PinnedResults(ThreadPool(abs, 2).run(range(5)), lambda number: 1 // (2 - number))
    assert [next(pinned), next(pinned)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
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
