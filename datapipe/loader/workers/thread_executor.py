"""Executor of the jobs of a plan on threads, in order, a bounded number ahead.

A job is one step. Its pieces go into one queue, nearest step first, so that all workers together
make the first batch.

Workers and caller meet in two `SimpleQueue`s and share no lock. When an executor is dropped (a
`break`, an exception), the collector may find it in any thread and in the middle of anything, and
an interrupt that arrives while Python code of a finalizer runs would be lost. So there is none: the
callback of a weak reference is the queue's own `put`, which wakes the workers, and they see that
their executor is gone. Waiting for them is left to `close` and to interpreter exit.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator

from datapipe.errors import DatapipeError
from datapipe.loader.batch.builder import BatchBuilder
from datapipe.loader.metrics.meter import Meter
from datapipe.loader.metrics.watch import Watch, describe_stall
from datapipe.loader.schedule.run_options import LoaderOptions
from datapipe.torch_threads import alone, default_kept, work_alone

logger = logging.getLogger(__name__)

_PATIENCE = 5.0  # seconds that a worker gets to finish its sample


class _Team:
    """Worker threads. They never refer to their executor, so that it can be collected."""

    def __init__(self, watches: list[Watch], on_end: Callable[[], None]) -> None:
        # Anything but a piece of a job means that the team may have ended.
        self.work: queue.SimpleQueue[object] = queue.SimpleQueue()
        # A finished job, an exception that ended a worker, or None when the team stops.
        self.done: queue.SimpleQueue[BatchBuilder | BaseException | None] = queue.SimpleQueue()
        self.ready: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.owner: weakref.ref[ThreadExecutor] | None = None
        self._stopped = False
        self.watches = watches
        self.threads: list[threading.Thread] = []
        self._exits = itertools.count(1)
        self._on_end = on_end

    def start(self) -> None:
        """Start all workers, each limited to one thread inside torch's kernels."""
        if not self.watches:
            return
        _TEAMS.add(self)
        with default_kept():
            try:
                for number, watch in enumerate(self.watches):
                    # A daemon, so that a forgotten one does not keep the interpreter from exiting.
                    thread = threading.Thread(
                        target=_work,
                        args=(self, watch),
                        name=f"datapipe-worker-{number}",
                        daemon=True,
                    )
                    thread.start()
                    self.threads.append(thread)
                for _ in self.threads:
                    self.ready.get()
            except BaseException:
                self.stop()
                self.join()
                # Threads that did not start will not leave either.
                self._end()
                raise

    @property
    def ended(self) -> bool:
        """True if it was stopped, or its executor is gone."""
        return self._stopped or self.owner is None or self.owner() is None

    def stop(self) -> None:
        """Tell all workers to stop, without waiting for it."""
        self._stopped = True
        self.work.put(None)
        self.done.put(None)

    def join(self) -> None:
        """Wait for the workers; a sample that is being decoded is finished first."""
        for thread, watch in zip(self.threads, self.watches, strict=False):
            if thread is threading.current_thread():
                continue
            thread.join(_PATIENCE)
            if thread.is_alive():
                # A read that hangs cannot be interrupted; the thread ends with the process.
                logger.warning("a worker does not stop: %s", watch.report() or "it is starting")

    def leave(self) -> None:
        """Count the end of a worker; the last one clears up."""
        if next(self._exits) == len(self.watches):
            self._end()

    def _end(self) -> None:
        if not self._stopped:
            # Nobody joins a team that was dropped. Python code runs when a `Thread` is deleted
            # (`threading._dangling`), so the thread that iterates must not be the last to refer
            # to one.
            self.threads.clear()
        _TEAMS.discard(self)
        self._on_end()


_TEAMS: set[_Team] = set()  # with threads


@atexit.register
def _stop_all() -> None:
    teams = list(_TEAMS)
    for team in teams:
        team.stop()
    for team in teams:
        team.join()


class ThreadExecutor:
    """Executor that returns finished jobs in the order given. Dropping it stops its workers.

    Args:
        jobs: made one by one in the caller's thread, when there is room.
        options: of the loader; without workers every job runs in the caller's thread, when it is
            asked for.
        on_end: called once, when the last worker has stopped, in any thread.
        meter: of the workers' time; None for none.
    """

    def __init__(
        self,
        jobs: Iterator[BatchBuilder],
        options: LoaderOptions,
        *,
        on_end: Callable[[], None],
        meter: Meter | None = None,
    ) -> None:
        self._jobs = jobs
        self._options = options
        self._window: deque[BatchBuilder] = deque()
        self._finished: set[int] = set()  # jobs of the window, by id
        rows = [f"worker {number}" for number in range(options.num_workers)] or ["caller"]
        watches = [Watch(None if meter is None else meter.clock(row)) for row in rows]
        self._inline = watches[0]
        self._team = _Team(watches if options.num_workers else [], on_end)
        # Before the first thread, so that an interrupt in between leaves none behind.
        self._team.owner = weakref.ref(self, self._team.work.put)
        self._inline_end = None if options.num_workers else weakref.finalize(self, on_end)
        self._team.start()

    def next(self) -> BatchBuilder:
        """Return the next job, finished.

        Raises:
            StopIteration: there are no more.
            DatapipeError: the executor was closed.
            BaseException: raised by a job.
        """
        if not self._team.watches:
            job = next(self._jobs)
            with alone():
                for piece in range(job.pieces):
                    job.run(piece, self._inline)
            self._inline.idle()
            return job
        self._fill()
        if not self._window:
            raise StopIteration
        self._wait(self._window[0])
        job = self._window.popleft()
        # Before the caller goes off to train on this one.
        self._fill()
        return job

    def ready(self) -> bool:
        """Return whether the next job is finished."""
        while True:
            try:
                event = self._team.done.get_nowait()
            except queue.Empty:
                return bool(self._window) and id(self._window[0]) in self._finished
            if event is None or isinstance(event, BaseException):
                self._team.done.put(event)  # for `next`, which raises it in its turn
                return False
            self._finished.add(id(event))
            del event

    def close(self) -> None:
        """Stop the workers and wait for them."""
        self._team.stop()
        self._team.join()
        if self._inline_end:
            self._inline_end()

    def _fill(self) -> None:
        while len(self._window) < self._options.prefetch_factor:
            job = next(self._jobs, None)
            if job is None:
                return
            self._window.append(job)
            # Counted by the workers, so that the caller is woken once a job: `next` of a counter
            # cannot be interrupted by another thread.
            pieces, ended = job.pieces, itertools.count(1)
            if not pieces:
                self._finished.add(id(job))
            for piece in range(pieces):
                self._team.work.put((job, piece, pieces, ended))

    def _wait(self, job: BatchBuilder) -> None:
        started = time.monotonic()
        patience = self._options.stall_warning
        while id(job) not in self._finished:
            try:
                event = self._team.done.get(timeout=patience)
            except queue.Empty:
                reports = [report for w in self._team.watches if (report := w.report(job))]
                logger.warning("%s", describe_stall(time.monotonic() - started, reports))
                patience = min(2 * patience, threading.TIMEOUT_MAX)
                continue
            if event is None:
                raise DatapipeError("the loader was closed while its next batch was awaited")
            if isinstance(event, BaseException):
                raise event
            self._finished.add(id(event))
            del event  # a batch must not live longer than its user wants
        self._finished.remove(id(job))


def _work(team: _Team, watch: Watch) -> None:
    """Run pieces until the team ends. Entry of a worker thread."""
    try:
        work_alone()
        team.ready.put(None)
        while isinstance(task := team.work.get(), tuple) and not team.ended:
            job, piece, pieces, ended = task
            del task  # an idle worker must not keep a batch alive
            try:
                job.run(piece, watch)
            except BaseException as error:  # raised again in the thread that iterates
                team.done.put(error)
                return
            finally:
                watch.idle()
            if next(ended) == pieces:
                team.done.put(job)
            del job
        team.work.put(None)  # for the next worker
    finally:
        team.leave()
