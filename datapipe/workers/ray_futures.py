"""Tasks of a Ray cluster that are started ahead, as references to their results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from datapipe.errors import WorkerError
from datapipe.workers.job_feed import JobFeed
from datapipe.workers.ray_cluster import RayCluster

J = TypeVar("J")

_TICK = 0.5  # seconds after which a wait sees that another thread has closed the run


class RayFutures(Iterator[tuple[J, Any]], Generic[J]):
    """Iterator over jobs, each with the reference to its result, in the order of the jobs.

    `most` tasks run or wait to be taken. A reference comes before its task has ended, so that
    a thread can wait for the result while the caller works. Tasks of a run that is closed come to
    their end: to cancel one at that moment aborts the driver (Ray 2.60).
    """

    def __init__(
        self, cluster: RayCluster, jobs: Iterable[J], submit: Callable[[J], Any], *, most: int
    ) -> None:
        self._cluster = cluster
        self._feed = JobFeed(jobs)
        self._submit = submit
        self._most = most
        self._begun: deque[tuple[J, Any]] = deque()
        self._closed = False

    def __next__(self) -> tuple[J, Any]:
        self._fill()
        if not self._begun:
            raise self._feed.end()
        job, reference = self._begun.popleft()
        self._fill()
        return job, reference

    def result(self, reference: Any) -> Any:
        """Wait for a result, as `RayCluster.result` does; `WorkerError` once this is closed."""
        while not self._cluster.ready([reference], _TICK):
            if self._closed:
                raise WorkerError("the run was closed while its next result was awaited")
        return self._cluster.result(reference)

    def wait(self, seconds: float) -> bool:
        """Return True: `next` does not wait."""
        return True

    def close(self) -> None:
        self._feed.close()
        self._closed = True
        self._begun.clear()

    def _fill(self) -> None:
        for job in self._feed.take(self._most - len(self._begun)):
            self._begun.append((job, self._submit(job)))
