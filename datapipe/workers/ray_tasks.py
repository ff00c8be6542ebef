"""Pool of tasks on a Ray cluster.

A function may return `Stored`: an answer, which comes here, and data, which stays in the object
store of the node that made it. Then the result has a reference to the data, and is a job of another
pool, whose tasks get the data without a copy of it here. Ray makes both again where a node is lost.
"""

from __future__ import annotations

import logging
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import uuid4

from datapipe.errors import DatapipeError, StoreError, WorkerError
from datapipe.workers.job_feed import JobFeed, WindowedResults
from datapipe.workers.ray_cluster import RETRIES, LostTask, RayCluster, node_name

J = TypeVar("J")
R = TypeVar("R")
A = TypeVar("A")

logger = logging.getLogger(__name__)

_TICK = 0.5  # seconds after which a wait sees that another thread has closed the run


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
        return self._ahead * self.cluster.resources.cpus

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


class RayResults(WindowedResults[J, R]):
    """Results of jobs that are tasks of a cluster."""

    def __init__(self, pool: RayPool[J, R], jobs: Iterable[J]) -> None:
        super().__init__(pool, jobs)
        self._window: list[_Task[J]] = []
        self._running: dict[Any, _Task[J]] = {}  # by the reference to the answer

    def close(self) -> None:
        super().close()
        # Tasks run to their end: to cancel one at that moment aborts the driver (Ray 2.60).
        self._window, self._running = [], {}

    def _begin(self, job: J) -> None:
        self._window.append(self._begun(job))

    def _begun(self, job: J) -> _Task[J]:
        task: _Task[J] = self._pool.submit(job)
        self._running[task.reference] = task
        return task

    def _receive(self, window: list[_Task[J]], seconds: float | None) -> bool:
        running = self._running
        if self.is_closed:  # by another thread, which may have replaced what is running
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
                window.insert(place + 1, self._begun(rest))
        except LostTask as error:
            if len(smaller := pool.split(task.job)) > 1:
                logger.warning("%s; it is tried again in %d tasks", error, len(smaller))
                window[place : place + 1] = map(self._begun, smaller)
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


class RayFutures(JobFeed[J], Iterator[tuple[J, Any]]):
    """Iterator over jobs, each with the reference to its result, in the order of the jobs.

    `most` tasks run or wait to be taken. A reference comes before its task has ended, so that
    a thread can wait for the result while the caller works. Tasks of a run that is closed come to
    their end: to cancel one at that moment aborts the driver (Ray 2.60).
    """

    def __init__(
        self, cluster: RayCluster, jobs: Iterable[J], submit: Callable[[J], Any], *, most: int
    ) -> None:
        super().__init__(jobs)
        self._cluster = cluster
        self._submit = submit
        self._most = most
        self._begun: deque[tuple[J, Any]] = deque()
        self._was_closed = False  # results that were handed out may be awaited after the end

    def __next__(self) -> tuple[J, Any]:
        self._fill()
        if not self._begun:
            raise self.end()
        job, reference = self._begun.popleft()
        self._fill()
        return job, reference

    def result(self, reference: Any) -> Any:
        """Wait for a result, as `RayCluster.result` does; `WorkerError` once this is closed."""
        while not self._cluster.ready([reference], _TICK):
            if self._was_closed:
                raise WorkerError("the run was closed while its next result was awaited")
        return self._cluster.result(reference)

    def wait(self, seconds: float) -> bool:
        """Return True: `next` does not wait."""
        return True

    def close(self) -> None:
        super().close()
        self._was_closed = True
        self._begun.clear()

    def _fill(self) -> None:
        for job in self.take(self._most - len(self._begun)):
            self._begun.append((job, self._submit(job)))


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
