"""Runs the jobs of a plan on threads, in order, a bounded number ahead.

A job is one step. Its pieces go into one queue, nearest step first, so that the first batch comes
as fast as all workers together can make it. Nothing here knows what a job does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch

from datapipe.errors import DatapipeError

logger = logging.getLogger(__name__)

_PATIENCE = 5.0  # seconds that a worker gets to finish its sample


class Job(Protocol):
    """Work of one step, in pieces that may run in any order and at the same time."""

    @property
    def pieces(self) -> int: ...

    def run(self, piece: int, watch: Watch) -> None:
        """Do one piece, telling `watch` what is being done. What it raises ends the loader."""
        ...

    def describe(self, slot: int) -> str:
        """Name the sample in a slot, for the watchdog."""
        ...


J = TypeVar("J", bound=Job)


class Watch:
    """What one worker is doing right now; written by it, read by the watchdog."""

    def __init__(self) -> None:
        self._now: tuple[Job, int, str, float] | None = None

    def at(self, job: Job, slot: int, stage: str) -> None:
        """Say that the sample in this slot has reached a stage."""
        self._now = (job, slot, stage, time.monotonic())

    def idle(self) -> None:
        self._now = None

    def report(self, job: Job | None = None) -> str | None:
        """What this worker is at, and for how long; None if it is not at `job`, or at nothing."""
        now = self._now
        if now is None or (job is not None and now[0] is not job):
            return None
        job, slot, stage, since = now
        return f"{job.describe(slot)} in stage '{stage}' for {time.monotonic() - since:.0f} s"


@dataclass
class _Shared(Generic[J]):
    """What worker threads see. They never refer to the iterator, so that it can be collected."""

    # Reentrant: the collector may run a forgotten iterator's shutdown in a thread that holds it.
    lock: threading.RLock = field(default_factory=threading.RLock)
    queue: deque[tuple[J, int]] = field(default_factory=deque)
    left: dict[int, int] = field(default_factory=dict)  # pieces of each job, by id
    failed: BaseException | None = None
    stopping: bool = False

    def __post_init__(self) -> None:
        self.work = threading.Condition(self.lock)
        self.done = threading.Condition(self.lock)


class Executor(Generic[J]):
    """Iterates over finished jobs in the order given.

    Args:
        jobs: made one by one in the caller's thread, when there is room.
        num_workers: threads; 0 runs every job in the caller's thread, when it is asked for.
        ahead: most jobs that are begun before they are asked for.
        stall_warning: seconds after which a wait is explained in the log.
        on_shutdown: called once, after the last worker has stopped.
    """

    def __init__(
        self,
        jobs: Iterator[J],
        *,
        num_workers: int,
        ahead: int,
        stall_warning: float,
        on_shutdown: Callable[[], None],
    ) -> None:
        self._jobs = jobs
        self._ahead = ahead
        self._stall_warning = stall_warning
        self._on_shutdown = on_shutdown
        self._window: deque[J] = deque()
        self._shared: _Shared[J] = _Shared()
        self._inline = Watch()
        self._watches = [Watch() for _ in range(num_workers)]
        self._threads = _start_threads(self._shared, self._watches)

    def next(self) -> J:
        """The next job, finished.

        Raises:
            StopIteration: there are no more.
            BaseException: whatever a job let through.
        """
        if not self._threads:
            job = next(self._jobs)
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

    def shutdown(self) -> None:
        """Stop and join the workers; a sample that is being decoded is finished first."""
        shared = self._shared
        with shared.lock:
            if shared.stopping:
                return
            shared.stopping = True
            shared.queue.clear()
            shared.work.notify_all()
            shared.done.notify_all()
        for thread, watch in zip(self._threads, self._watches, strict=True):
            if thread is threading.current_thread():  # collected by a worker's own hand
                continue
            thread.join(_PATIENCE)
            if thread.is_alive():
                # A read that hangs cannot be interrupted; the thread ends with the process.
                logger.warning("a worker does not stop: %s", watch.report() or "it is starting")
        self._window.clear()
        self._on_shutdown()

    def _fill(self) -> None:
        while len(self._window) < self._ahead:
            job = next(self._jobs, None)
            if job is None:
                return
            self._window.append(job)
            shared = self._shared
            with shared.lock:
                shared.left[id(job)] = job.pieces
                shared.queue.extend((job, piece) for piece in range(job.pieces))
                shared.work.notify_all()

    def _wait(self, job: J) -> None:
        shared = self._shared
        started = time.monotonic()
        warn_after = self._stall_warning
        with shared.lock:
            while shared.left[id(job)]:
                if shared.failed is not None:
                    raise shared.failed
                if shared.stopping:
                    raise DatapipeError("the loader was closed while its next batch was awaited")
                shared.done.wait(warn_after)
                waited = time.monotonic() - started
                if waited >= warn_after and shared.left[id(job)]:
                    logger.warning("%s", self._explain(job, waited))
                    warn_after = waited * 2
            del shared.left[id(job)]

    def _explain(self, job: J, waited: float) -> str:
        reports = [report for watch in self._watches if (report := watch.report(job))]
        where = "; ".join(reports) or "no worker is at it"
        return f"the loader has been waiting {waited:.0f} s for its next batch: {where}"


def _start_threads(shared: _Shared[J], watches: list[Watch]) -> list[threading.Thread]:
    """Start a worker per watch, each limited to one thread inside torch's kernels."""
    before = torch.get_num_threads()
    ready = threading.Barrier(len(watches) + 1)
    threads = [
        # Daemons, so that a forgotten iterator does not keep the interpreter from exiting.
        threading.Thread(
            target=_work, args=(shared, watch, ready), name=f"datapipe-worker-{number}", daemon=True
        )
        for number, watch in enumerate(watches)
    ]
    for thread in threads:
        thread.start()
    if threads:
        ready.wait()
        # torch keeps the number of threads per thread, and as a default for threads to come;
        # the workers changed the default.
        torch.set_num_threads(before)
    return threads


def _work(shared: _Shared[J], watch: Watch, ready: threading.Barrier) -> None:
    # A thread takes the default over at its first question, which must not come after the answer.
    torch.get_num_threads()
    torch.set_num_threads(1)
    ready.wait()
    while True:
        with shared.lock:
            while not shared.queue and not shared.stopping:
                shared.work.wait()
            if shared.stopping:
                return
            try:
                job, piece = shared.queue.popleft()
            except IndexError:
                continue
        try:
            job.run(piece, watch)
        except BaseException as error:  # handed to the thread that iterates
            with shared.lock:
                shared.failed = shared.failed or error
                shared.done.notify_all()
            return
        finally:
            watch.idle()
        with shared.lock:
            if id(job) in shared.left:
                shared.left[id(job)] -= 1
                if not shared.left[id(job)]:
                    shared.done.notify_all()
        del job  # an idle worker must not keep a batch alive
