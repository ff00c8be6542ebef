"""Pool of tasks on a Ray cluster.

A task makes two things of a job: an answer, which comes here, and data, which stays in the object
store of the node that made it. A result is the answer with a reference to the data, so other tasks
can take the data without a copy of it here. Ray makes both again where a node is lost.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from datapipe.errors import WorkerError
from datapipe.workers.job_feed import JobFeed
from datapipe.workers.ray_cluster import LostTask, RayCluster

J = TypeVar("J")
A = TypeVar("A")

logger = logging.getLogger(__name__)


class Stored(NamedTuple, Generic[A]):
    """Result of a task."""

    answer: A
    data: Any  # a reference; None of a job that was given up


class RayPool(Generic[J, A]):
    """Pool of the tasks of a cluster; `run` gives `Stored` results in the order of the jobs.

    A job whose task is lost in every attempt is taken apart by `split`. `give_up` makes the answer
    of one that cannot be. So what kills its worker costs no more than the smallest of jobs.
    """

    def __init__(
        self,
        cluster: RayCluster,
        factory: Callable[[], Callable[[J], tuple[A, Any]]],  # called in each worker
        *,
        split: Callable[[J], list[J]],  # fewer than two if it cannot be taken apart
        give_up: Callable[[J, LostTask], A],
        rest: Callable[[J, A], J | None],  # part of a job that its answer leaves undone
        ahead: int = 3,  # jobs per CPU that are begun, queued or wait to be taken
        **options: Any,  # of the tasks
    ) -> None:
        self.cluster = cluster
        self.split = split
        self.give_up = give_up
        self.rest = rest
        self._factory = pickle.dumps(factory)
        self._ahead = ahead
        self._options = options
        self._results: RayResults[J, A] | None = None

    @property
    def window(self) -> int:
        return self._ahead * self.cluster.cpus

    def run(self, jobs: Iterable[J]) -> RayResults[J, A]:
        """Return the results of jobs; `WorkerError` if no task can be run at all."""
        self.close()
        self.cluster.result(self.cluster.submit(_start, self._factory, **self._options))
        self._results = RayResults(self, jobs)
        return self._results

    def close(self) -> None:
        """Cancel the tasks of the run."""
        if self._results is not None:
            self._results.close()

    def submit(self, job: J) -> _Task[J, A]:
        given = {"num_returns": 2} | self._options
        return _Task(job, *self.cluster.submit(do_job, self._factory, job, **given))


class RayResults(Generic[J, A]):
    """Results of jobs that are tasks of a cluster."""

    def __init__(self, pool: RayPool[J, A], jobs: Iterable[J]) -> None:
        self._pool = pool
        self._feed = JobFeed(jobs)
        self._window: list[_Task[J, A]] = []  # in the order of the jobs
        self._running: dict[Any, _Task[J, A]] = {}  # by the reference to the answer

    def __iter__(self) -> RayResults[J, A]:
        return self

    def __next__(self) -> Stored[A]:
        self._fill()
        if not self._window:
            raise self._feed.end()
        while (done := self._window[0].done) is None:
            self._settle(None)
        if isinstance(done, Exception):
            self.close()
            raise done
        del self._window[0]
        self._fill()  # before the caller turns to this result
        return done

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        self._fill()
        while self._window and self._window[0].done is None:
            if not self._settle(max(deadline - time.monotonic(), 0)):
                return False
        return True

    def close(self) -> None:
        self._feed.close()
        self._pool.cluster.cancel(list(self._running))
        self._running.clear()
        self._window.clear()

    def _fill(self) -> None:
        for job in self._feed.take(self._pool.window - len(self._window)):
            self._window.append(self._begin(job))

    def _begin(self, job: J) -> _Task[J, A]:
        task = self._pool.submit(job)
        self._running[task.reference] = task
        return task

    def _settle(self, seconds: float | None) -> bool:
        """Wait for tasks to end; return False if the time is over."""
        ended = self._pool.cluster.ready(list(self._running), seconds)
        for reference in ended:
            self._end(self._running.pop(reference))
        return bool(ended)

    def _end(self, task: _Task[J, A]) -> None:
        pool, place = self._pool, self._window.index(task)
        try:
            answer: A = pool.cluster.result(task.reference)
        except LostTask as error:
            if len(smaller := pool.split(task.job)) > 1:
                logger.warning("%s; it is tried again in %d tasks", error, len(smaller))
                self._window[place : place + 1] = map(self._begin, smaller)
                return
            task.done = Stored(pool.give_up(task.job, error), None)
            return
        except Exception as error:  # raised in its turn
            task.done = error
            return
        task.done = Stored(answer, task.data)
        if (rest := pool.rest(task.job, answer)) is not None:
            self._window.insert(place + 1, self._begin(rest))


class _Task(Generic[J, A]):
    __slots__ = ("data", "done", "job", "reference")

    def __init__(self, job: J, reference: Any, data: Any) -> None:
        self.job = job
        self.reference = reference
        self.data = data
        self.done: Stored[A] | Exception | None = None


def _start(factory: bytes) -> None:
    _worker(factory)


def do_job(factory: bytes, job: Any) -> Any:
    """Do a job by the function of a pickled factory. A task."""
    return _worker(factory)(job)


@lru_cache(maxsize=4)
def _worker(factory: bytes) -> Callable[[Any], Any]:
    """Return the function of a factory, which is called once in a process."""
    try:
        work: Callable[[Any], Any] = pickle.loads(factory)()
    except ImportError as error:
        raise WorkerError(
            f"a node lacks what the driver has: {error}; install the same packages on every node, "
            "or give a runtime_env"
        ) from error
    return work
