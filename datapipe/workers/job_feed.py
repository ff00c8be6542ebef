"""Jobs of a run, taken one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

J = TypeVar("J")


class JobFeed(Generic[J]):
    """Iterable of jobs whose exception is kept until the jobs before it are done."""

    def __init__(self, jobs: Iterable[J]) -> None:
        self._jobs: Iterator[J] | None = iter(jobs)
        self._error: Exception | None = None

    def take(self, most: int) -> Iterator[J]:
        """Yield up to `most` jobs, fewer at the end."""
        while most > 0 and self._jobs is not None:
            try:
                job = next(self._jobs)
            except StopIteration:
                self._jobs = None
            except Exception as error:
                self._jobs, self._error = None, error
            else:
                most -= 1
                yield job

    def end(self) -> Exception:
        """Return the exception that ends the run: that of the iterable, or StopIteration."""
        error, self._error = self._error, None
        return error or StopIteration()

    def close(self) -> None:
        """Forget the jobs that were not taken."""
        self._jobs = self._error = None
