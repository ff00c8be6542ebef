"""Pool of tasks on a Ray cluster.

A function may return `Stored`: an answer, which comes here, and data, which stays in the object
store of the node that made it. Then the result has a reference to the data, and is a job of another
pool, whose tasks get the data without a copy of it here. Ray makes both again where a node is lost.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import uuid4

from datapipe.errors import DatapipeError, StoreError, WorkerError
from datapipe.workers.job_feed import CLOSED, JobFeed
from datapipe.workers.ray_cluster import RETRIES, LostTask, RayCluster, node_name

J = TypeVar("J")
R = TypeVar("R")
A = TypeVar("A")

logger = logging.getLogger(__name__)


class Stored(NamedTuple, Generic[A]):
    """Result or job with data that stays where it was made."""

    answer: A
    data: Any  # a reference to it; in the function of a task, the data itself


class RayPool(Generic[J, R]):
    """Pool of the tasks of a cluster.

    A job whose task is lost in every attempt is taken apart by `split`. `give_up` makes the result
    of one that cannot be; without it, the run ends with a `WorkerError`. So what kills its worker
    costs no more than the smallest of jobs.
    """

    def __init__(
        self,
        cluster: RayCluster,
        factory: Callable[[], Callable[[J], R]],  # called in each worker
        *,
        is_stored: bool = False,  # results are `Stored`
        split: Callable[[J], list[J]] = lambda job: [],  # fewer than two if it cannot be
        give_up: Callable[[J, LostTask], R] | None = None,
        rest: Callable[[J, R], J | None] = lambda job, result: None,  # that its result leaves
        describe: Callable[[J], str] = str,  # names a job in messages
        ahead: int = 3,  # jobs per CPU that are begun, queued or wait to be taken
        **options: Any,  # of the tasks
    ) -> None:
        self.cluster = cluster
        self.split = split
        self.rest = rest
        self._give_up = give_up
        self._describe = describe
        self._factory = cluster.put(pickle_factory(factory, uuid4().hex))
        self._ahead = ahead
        self._options = {"num_returns": 1 + is_stored} | options
        self._results: RayResults[J, R] | None = None

    @property
    def window(self) -> int:
        return self._ahead * self.cluster.cpus

    def run(self, jobs: Iterable[J]) -> RayResults[J, R]:
        """Return the results of jobs; `WorkerError` if no task can be run at all."""
        if self._results is not None:
            self._results.close()
        options = self._options | {"num_returns": 1}
        self.cluster.result(self.cluster.submit(_start, self._factory, **options))
        self._results = RayResults(self, jobs)
        return self._results

    def close(self) -> None:
        if self._results is not None:
            self._results.cut()
            self._results.close()

    def submit(self, job: J) -> _Task[J]:
        args = job if isinstance(job, Stored) else (job,)
        made = self.cluster.submit(do_job, self._factory, *args, **self._options)
        return _Task(job, *(made if isinstance(made, list) else (made,)))

    def give_up(self, job: J, error: LostTask) -> R:
        """Return the result of a job that is lost, or raise `WorkerError`."""
        if self._give_up is None:
            raise WorkerError(
                f"{self._describe(job)}: {error.reason} in each of {RETRIES + 1} attempts "
                f"({error.kind}); run the same command again"
            )
        return self._give_up(job, error)


class RayResults(Iterator[R], Generic[J, R]):
    """Results of jobs that are tasks of a cluster."""

    def __init__(self, pool: RayPool[J, R], jobs: Iterable[J]) -> None:
        self._pool = pool
        self._feed = JobFeed(jobs)
        self._window: list[_Task[J]] = []  # in the order of the jobs
        self._running: dict[Any, _Task[J]] = {}  # by the reference to the answer

    def __next__(self) -> R:
        self._fill()
        window = self._window  # another thread that closes the run puts a new one in its place
        if not window:
            raise self._feed.end()
        while not window[0].has_ended:
            self._settle(None)
            if self._feed.is_closed:
                raise WorkerError(CLOSED)
        task = window[0]
        if task.error is not None:
            self.close()
            raise task.error
        del window[0]
        self._fill()  # before the caller turns to this result
        result: R = task.result
        return result

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        self._fill()
        window = self._window
        while window and not window[0].has_ended and not self._feed.is_closed:
            if not self._settle(max(deadline - time.monotonic(), 0)):
                return False
        return True

    def cut(self) -> None:
        """Let `next` see that results which were awaited are lost."""
        self._feed.cut()

    def close(self) -> None:
        self._feed.close()
        # Tasks run to their end: to cancel one at that moment aborts the driver (Ray 2.60).
        self._window, self._running = [], {}

    def _fill(self) -> None:
        for job in self._feed.take(self._pool.window - len(self._window)):
            self._window.append(self._begin(job))

    def _begin(self, job: J) -> _Task[J]:
        task = self._pool.submit(job)
        self._running[task.reference] = task
        return task

    def _settle(self, seconds: float | None) -> bool:
        """Wait for tasks to end; return False if the time is over."""
        window, running = self._window, self._running
        if self._feed.is_closed:  # by another thread, perhaps after the first of them was read
            return True
        ended = self._pool.cluster.ready(list(running), seconds)
        for reference in ended:
            self._end(running.pop(reference), window)
        return bool(ended)

    def _end(self, task: _Task[J], window: list[_Task[J]]) -> None:
        pool, place = self._pool, window.index(task)
        try:
            task.result = pool.cluster.result(task.reference)
            if task.data is not None:
                task.result = Stored(task.result, task.data)
            if (rest := pool.rest(task.job, task.result)) is not None:
                window.insert(place + 1, self._begin(rest))
        except LostTask as error:
            if len(smaller := pool.split(task.job)) > 1:
                logger.warning("%s; it is tried again in %d tasks", error, len(smaller))
                window[place : place + 1] = map(self._begin, smaller)
                return
            try:
                task.result = pool.give_up(task.job, error)
            except WorkerError as given_up:
                task.error = given_up
        except Exception as error:  # raised in its turn
            task.error = error
        task.has_ended = True


@dataclass(slots=True, eq=False)
class _Task(Generic[J]):
    job: J
    reference: Any
    data: Any = None
    has_ended: bool = False
    result: Any = None
    error: Exception | None = None


def _start(factory: bytes) -> None:
    _worker(factory)


def pickle_factory(factory: Callable[[], Callable[[Any], Any]], name: str = "") -> bytes:
    """Pickle a factory for `do_job`; a process calls it once for equal factories of one name."""
    return pickle.dumps((name, factory))


def do_job(factory: bytes, *job: Any) -> Any:
    """Do a job by the function of a pickled factory. A task."""
    work = _worker(factory)
    try:
        return work(Stored(*job) if len(job) > 1 else job[0])
    except StoreError as error:
        raise StoreError(f"on the node {node_name()}: {error}") from error


@lru_cache(maxsize=4)
def _worker(factory: bytes) -> Callable[[Any], Any]:
    """Return the function of a factory, which each pool calls once in a process."""
    try:
        _, make = pickle.loads(factory)
        work: Callable[[Any], Any] = make()
    except ImportError as error:
        raise WorkerError(
            f"a node lacks a module that the driver has: {error}; install the same packages on "
            "every node, or give a runtime_env"
        ) from error
    except (DatapipeError, OSError) as error:
        if isinstance(error, WorkerError):
            raise
        raise WorkerError(
            f"the node {node_name()} cannot do the work: {error}; nodes need the files that "
            "the command reads and writes under the same path"
        ) from error
    return work
