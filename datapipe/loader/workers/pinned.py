"""Results that are copied to page-locked memory in a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from datapipe.workers.protocol import Results

R = TypeVar("R")
S = TypeVar("S")


class PinnedResults(Iterator[S], Generic[R, S]):
    """Results with a function applied to each in a thread.

    The next result that is there is copied by `pin` while the caller uses the one before.
    """

    def __init__(self, results: Results[R], pin: Callable[[R], S]) -> None:
        self._results = results
        self._pin = pin
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="datapipe-pin")
        self._next: deque[Future[S]] = deque()  # one at most

    def __next__(self) -> S:
        self._take()
        pinned = self._next.popleft().result()
        if self._results.wait(0):
            self._take()
        return pinned

    def wait(self, seconds: float) -> bool:
        if not self._next and not self._results.wait(seconds):
            return False
        self._take()
        return bool(wait(self._next, seconds).done)

    def close(self) -> None:
        self._results.close()
        self._thread.shutdown(wait=False)
        self._next.clear()

    def _take(self) -> None:
        """Begin to copy the next result. Exceptions are raised in their turn."""
        if self._next:
            return
        try:
            result = next(self._results)
        except Exception as error:
            failed: Future[S] = Future()
            failed.set_exception(error)
            self._next.append(failed)
        else:
            self._next.append(self._thread.submit(self._pin, result))
