"""Protocol of a pool of workers.

A run holds a bounded number of jobs and results. The rooms that make them bound their bytes:
packing and the counting of tokens cut jobs at 4 MB, packing answers in segments of fixed size, and
a batch is as large as its user wants it. So a pool does not weigh jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

J = TypeVar("J", contravariant=True)
R = TypeVar("R", covariant=True)


class Results(Iterator[R], Protocol[R]):
    """Iterator over the results of a run, in the order of its jobs.

    An exception that a job raises is raised in its turn, and ends the run. So is an exception of
    the iterable that jobs are taken from.
    """

    def __next__(self) -> R:
        """Wait for the next result, or raise what the job raised.

        `WorkerError` if the worker ended, the run was closed by another thread meanwhile, or the
        pool was closed before the last result was taken.
        """

    def wait(self, seconds: float) -> bool:
        """Wait until `next` need not wait: for a result, an error or the end; else return False.

        Zero seconds never block. A pool without workers returns True for all but zero seconds,
        because its results are made by `next`.
        """

    def close(self) -> None:
        """Drop the jobs that are not done. The workers stay, and the pool can run other jobs."""


class WorkerPool(Protocol[J, R]):
    """Workers that run one iterable of jobs at a time."""

    def run(self, jobs: Iterable[J]) -> Results[R]:
        """Return the results of jobs, which are taken one by one when there is room for them."""

    def close(self) -> None:
        """End the workers. It may be called twice, and by another thread than the run's."""
