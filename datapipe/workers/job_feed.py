"""Jobs of a run, taken one by one, and their results in the order of the jobs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from datapipe.errors import WorkerError

J = TypeVar("J")
R = TypeVar("R")

CLOSED = "the workers were closed while results were awaited"


class JobFeed(Generic[J]):
    """Iterable of jobs whose exception is kept until the jobs before it are done."""

    def __init__(self, jobs: Iterable[J]) -> None:
        self._jobs: Iterator[J] | None = iter(jobs)
        self._error: Exception | None = None
        self.is_closed = False

    def take(self, most: int) -> Iterator[J]:
        """Yield up to `most` jobs, fewer at the end.

        Raises `WorkerError` if another thread closes the feed meanwhile: what the caller does with
        the last job may come too late to be seen by it.
        """
        was_closed = self.is_closed
        # Read once: another thread that closes the feed sets it to None.
        while most > 0 and (jobs := self._jobs) is not None:
            try:
                job = next(jobs)
            except StopIteration:
                self._jobs = None
            except Exception as error:
                self._jobs, self._error = None, error
            else:
                most -= 1
                yield job
        if self.is_closed and not was_closed:
            raise WorkerError(CLOSED)

    def end(self) -> Exception:
        """Return the exception that ends the run: that of the iterable, or StopIteration."""
        error, self._error = self._error, None
        self.is_closed = True
        return error or StopIteration()

    def close(self) -> None:
        """Forget the jobs that were not taken."""
        if not self.is_closed:
            self._jobs = self._error = None
            self.is_closed = True

    def cut(self) -> None:
        """Close it, and let `end` return a `WorkerError`: results that were awaited are lost."""
        if not self.is_closed:
            self._jobs, self._error = None, WorkerError(CLOSED)
            self.is_closed = True  # last, since another thread may ask for the end


class WindowedResults(JobFeed[J], Iterator[R], Generic[J, R]):
    """Results of a pool that begins the jobs of its `window` ahead.

    `_window` has what was begun, oldest first. Another thread that closes the run puts a new one in
    its place.
    """

    _window: Any

    def __init__(self, pool: Any, jobs: Iterable[J]) -> None:
        self._pool = pool  # first: it lives as long as its results, and is dropped before the jobs
        super().__init__(jobs)

    def __next__(self) -> R:
        task = self._ended().pop(0)
        if task.error is not None:
            self.close()
            raise task.error
        self._fill()  # before the caller turns to this result
        result: R = task.result
        return result

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        self._fill()
        window = self._window
        while window and not self._has_ended(window) and not self.is_closed:
            if not self._receive(window, max(deadline - time.monotonic(), 0)):
                return False
        return True

    def _ended(self) -> Any:
        """Return the window once its oldest job has ended, or raise what ends the run."""
        self._fill()
        window = self._window
        if not window:
            raise self.end()
        while not self._has_ended(window):
            self._receive(window, None)
            if self.is_closed:
                raise WorkerError(CLOSED)
        return window

    def _fill(self) -> None:
        for job in self.take(self._pool.window - len(self._window)):
            self._begin(job)

    def _has_ended(self, window: Any) -> bool:
        """Return whether the oldest job of a window has ended."""
        return bool(window[0].has_ended)

    def _begin(self, job: J) -> None:
        """Begin a job, and append it to the window."""
        raise NotImplementedError

    def _receive(self, window: Any, seconds: float | None) -> bool:
        """Wait until a job ends; return False if the time is over."""
        raise NotImplementedError
