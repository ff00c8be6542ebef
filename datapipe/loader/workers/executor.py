"""Executor of the steps of a run, in order, a bounded number ahead."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Generic, Protocol, TypeVar

from datapipe.errors import DatapipeError
from datapipe.workers.protocol import Results

J = TypeVar("J")
R = TypeVar("R")
S = TypeVar("S")
Taken = TypeVar("Taken", contravariant=True)

logger = logging.getLogger(__name__)

_TICK = 1.0  # seconds after which a wait sees that another thread has closed the executor


class StepWorkers(Protocol[Taken]):
    """Workers that make the batches of one run. They derive from it."""

    def run(self, jobs: Iterator[Taken]) -> Results[Any]:
        """Start on jobs, which are taken in the caller's thread when there is room."""

    def finish(self, job: Taken, result: Any) -> None:
        """Complete a job with its result; called in the caller's thread."""
        return

    def describe(self, job: Taken) -> list[str]:
        """Return what the workers of a job are doing, for the log."""
        return []

    def end(self) -> None:
        """End the workers, unless another run is to use them."""
        return


class StepExecutor(Generic[J]):
    """Executor that returns finished steps in the order given. Workers start with the first one.

    Jobs are made one by one in the caller's thread, when there is room. A wait of `stall_warning`
    seconds is explained in the log.
    """

    def __init__(self, jobs: Iterator[J], workers: StepWorkers[J], stall_warning: float) -> None:
        self._window: deque[J] = deque()  # jobs that the workers have
        self._jobs = _noted(jobs, self._window)
        self._workers = workers
        self._stall_warning = stall_warning
        self._results: Results[Any] | None = None
        self._closed = False

    def next(self) -> J:
        """Return the next step, finished; raise what it raised, or `DatapipeError` if closed."""
        try:
            results = self._begun()
            self._wait(results)
            result = None if self._closed else next(results)
        except Exception as error:
            if self._closed:
                raise _closed() from error
            raise
        if self._closed:
            raise _closed()
        job = self._window.popleft()
        self._workers.finish(job, result)
        return job

    def ready(self) -> bool:
        """Return whether `next` need not wait."""
        return self._begun().wait(0)

    def close(self) -> None:
        """Drop the steps that are not finished, and leave the workers."""
        if self._closed:
            return
        self._closed = True
        if self._results is not None:
            self._results.close()
        self._workers.end()

    def _begun(self) -> Results[Any]:
        if self._results is None:
            self._results = self._workers.run(self._jobs)
        return self._results

    def _wait(self, results: Results[Any]) -> None:
        started = time.monotonic()
        patience = self._stall_warning
        while not self._closed and not results.wait(min(patience, _TICK)):
            waited = time.monotonic() - started
            if waited >= patience:
                reports = self._workers.describe(self._window[0]) if self._window else []
                logger.warning(
                    "the loader has been waiting %.0f s for its next batch: %s",
                    *(waited, "; ".join(reports) or "no worker is working on it"),
                )
                patience *= 2


def _noted(jobs: Iterable[J], window: deque[J]) -> Iterator[J]:
    # No method of the executor: a dropped executor must not wait for the collector.
    for job in jobs:
        window.append(job)
        yield job
        del job  # a batch must not live longer than its user wants


def _closed() -> DatapipeError:
    return DatapipeError("the loader was closed while its next batch was awaited")


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
