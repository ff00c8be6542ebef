"""Jobs of a run, taken one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from datapipe.errors import WorkerError

J = TypeVar("J")

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
