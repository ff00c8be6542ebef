"""Pool without workers, which runs each job in the caller's thread when its result is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from datapipe.workers.job_feed import JobFeed

J = TypeVar("J")
R = TypeVar("R")


class InlinePool(Generic[J, R]):
    """Pool that is the caller's thread.

    Examples:
        >>> list(InlinePool(abs).run([3, -1]))
        [3, 1]
    """

    def __init__(self, work: Callable[[J], R]) -> None:
        self._work = work

    def run(self, jobs: Iterable[J]) -> InlineResults[J, R]:
        return InlineResults(self._work, jobs)

    def close(self) -> None:
        pass


class InlineResults(JobFeed[J], Iterator[R], Generic[J, R]):
    """Results of jobs that are run by `next`."""

    def __init__(self, work: Callable[[J], R], jobs: Iterable[J]) -> None:
        super().__init__(jobs)
        self._work = work

    def __next__(self) -> R:
        for job in self.take(1):
            try:
                return self._work(job)
            except BaseException:
                self.close()
                raise
        raise self.end()

    def wait(self, seconds: float) -> bool:
        return seconds > 0
