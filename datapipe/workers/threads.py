"""Pool of threads.

Jobs go to the threads through a `SimpleQueue`, and each job has another one that wakes its caller.
So caller and workers share no lock that an interrupted caller could keep, and the caller is woken
only by the job that it waits for.

A pool may be dropped without `close`. The collector may then find it in any thread, in the middle
of anything, and an interrupt that arrives while Python code of a finalizer runs would be lost. So
there is no such code: the callback of a weak reference is the queue's own `put`, which wakes the
threads, and they see that their pool is gone.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from datapipe.workers.job_feed import WindowedResults

J = TypeVar("J")
R = TypeVar("R")

logger = logging.getLogger(__name__)

PATIENCE = 5.0  # seconds that a thread may take to finish its job


class ThreadPool(Generic[J, R]):
    """Pool of threads, which start with the first run.

    If `parts` returns the number of parts of a job, at least one, the threads do a job together:
    `work` gets it with the number of a part, and the last part to end gives the result.

    Examples:
        >>> pool = ThreadPool(abs, 2)
        >>> list(pool.run([3, -1]))
        [3, 1]
        >>> pool.close()
    """

    def __init__(
        self,
        work: Callable[[J], R] | Callable[[J, int], R],  # called by several threads at once
        workers: int,
        *,
        ahead: int = 2,  # jobs per thread that are begun or queued; with `parts`, of all
        name: str = "datapipe-worker",  # of the threads; a number follows it
        initializer: Callable[[], None] | None = None,  # `run` returns when all have called it
        parts: Callable[[J], int] | None = None,
        on_end: Callable[[], None] | None = None,  # when the last thread has ended
    ) -> None:
        self.window = ahead * workers if parts is None else ahead
        self.parts: Callable[[J], int] = parts or (lambda job: 1)
        given: Any = work
        of_parts: Callable[[Any, int], Any] = given if parts else lambda job, part: given(job)
        self._args = of_parts, workers, name, initializer, on_end
        self._crew: _Crew | None = None
        self._results: Callable[[], ThreadResults[J, R] | None] = lambda: None  # a weak reference

    def run(self, jobs: Iterable[J]) -> ThreadResults[J, R]:
        if (results := self._results()) is not None:
            results.close()
        crew = self._crew
        if crew is None:
            crew = _Crew(*self._args)
            # Before the first thread, so that an interrupt in between leaves none behind.
            crew.owner = weakref.ref(self, crew.queue.put)
            crew.start()
            self._crew = crew
        results = ThreadResults(self, crew.queue, jobs)
        self._results = weakref.ref(results)
        if self._crew is not crew:  # another thread has closed the pool, before it knew of this run
            results.cut()
        return results

    def close(self) -> None:
        """End the threads, and wait for the jobs that they are at.

        Another thread that awaits a result gets a `WorkerError`.
        """
        crew, self._crew = self._crew, None  # before the run is looked up: `run` checks it after
        if (results := self._results()) is not None:
            results.cut()
            results.close()
        if crew is not None:
            crew.stop()
            crew.join()


class ThreadResults(WindowedResults[J, R]):
    """Results of jobs that a pool's threads run."""

    def __init__(
        self, pool: ThreadPool[J, R], tasks: queue.SimpleQueue[object], jobs: Iterable[J]
    ) -> None:
        super().__init__(pool, jobs)
        self._tasks = tasks
        self._window: list[_ThreadJob] = []
        self._reference = weakref.ref(self)

    def close(self) -> None:
        super().close()
        window, self._window = self._window, []
        for task in list(window):
            task.woken.put(None)

    def _begin(self, job: J) -> None:
        task = _ThreadJob(job, self._reference, self._pool.parts(job))
        self._window.append(task)
        for part in range(task.parts):
            self._tasks.put((task, part))

    def _receive(self, window: list[_ThreadJob], seconds: float | None) -> bool:
        task = window[0]
        if not task.has_ended:
            with suppress(queue.Empty):
                task.woken.get(timeout=seconds)
        return task.has_ended


@dataclass(slots=True, eq=False)
class _ThreadJob:
    job: Any
    run: weakref.ref[ThreadResults[Any, Any]]
    parts: int
    # Parts that have ended: its `next` cannot be interrupted by another thread
    ended: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    result: Any = None
    error: BaseException | None = None
    has_ended: bool = False
    # Gets something when the job is done or dropped
    woken: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue)

    def execute(self, work: Callable[[Any, int], Any], part: int) -> None:
        """Do a part of the job, unless its run is closed or gone."""
        run = self.run()
        if run is None or run.is_closed:
            return
        del run  # which must not live on with a thread
        result = None
        try:
            result = work(self.job, part)
        except BaseException as error:  # raised again in the thread that waits
            self.error = error
        if next(self.ended) == self.parts:
            self.job = None
            self.result = result
            self.has_ended = True
            self.woken.put(None)


class _Crew:
    """Threads of a pool. They never refer to the pool, so that it can be collected."""

    def __init__(
        self,
        work: Callable[[Any, int], Any],
        workers: int,
        name: str,
        initializer: Callable[[], None] | None,
        on_end: Callable[[], None] | None,
    ) -> None:
        self.work = work
        self.initializer = initializer
        self.started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        # Anything but a task means that the crew may have ended.
        self.queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.owner: weakref.ref[ThreadPool[Any, Any]] | None = None
        self.is_stopped = False
        self._on_end = on_end
        self._count = workers
        self._exits = itertools.count(1)
        # Daemons, so that one that hangs does not keep the interpreter from exiting.
        self._threads = [
            threading.Thread(target=_serve, args=(self,), name=f"{name}-{number}", daemon=True)
            for number in range(workers)
        ]

    def start(self) -> None:
        """Start the threads, and wait for their initializers."""
        _CREWS.add(self)
        try:
            for thread in self._threads:
                thread.start()
            for _ in self._threads:
                if (error := self.started.get()) is not None:
                    raise error
        except BaseException:
            self.stop()
            self.join()
            # Threads that did not start do not leave either.
            self._end()
            raise

    def stop(self) -> None:
        """Tell the threads to end, without waiting for it."""
        self.is_stopped = True
        self.queue.put(None)

    def leave(self) -> None:
        """Count a thread that ends; the last one clears up."""
        if next(self._exits) == self._count:
            self._end()

    def _end(self) -> None:
        if not self.is_stopped:
            # The pool was dropped. Python code runs when a `Thread` is deleted, so the thread that
            # dropped the pool must not be the last to refer to one.
            self._threads.clear()
        _CREWS.discard(self)
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    def join(self) -> None:
        for thread in self._threads:
            if thread.ident is None or thread is threading.current_thread():
                continue
            thread.join(PATIENCE)
            if thread.is_alive():
                # A read that hangs cannot be interrupted; the thread ends with the process.
                logger.warning("%s does not stop", thread.name)


def _serve(crew: _Crew) -> None:
    """Run tasks until the crew ends. Entry of a thread."""
    try:
        try:
            # Nobody waits for a thread that Ctrl-C kept `start` from seeing. If it were in C++ when
            # the interpreter goes away, the process would be aborted.
            if crew.initializer is not None and not crew.is_stopped:
                crew.initializer()
        except BaseException as error:  # raised again in the thread that starts the crew
            crew.started.put(error)
            return
        crew.started.put(None)
        while isinstance(item := crew.queue.get(), tuple):
            if crew.is_stopped or crew.owner is None or crew.owner() is None:
                break
            task, part = item
            del item  # an idle thread must not keep a result alive
            task.execute(crew.work, part)
            del task
        crew.queue.put(None)  # for the next thread
    finally:
        crew.leave()


_CREWS: set[_Crew] = set()  # with threads


@atexit.register
def _stop_all() -> None:
    crews = list(_CREWS)
    for crew in crews:
        crew.stop()
    for crew in crews:
        crew.join()
