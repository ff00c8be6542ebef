"""Executor of the steps of a plan on worker processes, in order, a bounded number ahead.

`ProcessExecutor` does with processes what `ThreadExecutor` does with threads, for transforms that
hold the GIL. A worker makes a whole batch, with the same bits as threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator

from torch import Tensor

from datapipe.errors import DatapipeError, SampleError
from datapipe.loader.batch.builder import Batch
from datapipe.loader.batch.context import BatchContext, StepJob
from datapipe.loader.metrics.meter import Meter
from datapipe.loader.metrics.watch import describe_stall, describe_work
from datapipe.loader.workers.ipc import BLANK, Report, Task
from datapipe.loader.workers.process_pool import WorkerPool

logger = logging.getLogger(__name__)


class RemoteJob:
    """Step whose batch is made in a worker process; the loader uses it as a `BatchBuilder`.

    Attributes:
        number: of its task.
        errors, blank, finished: see `BatchBuilder`.
    """

    def __init__(self, context: BatchContext, step: StepJob) -> None:
        self.step = step
        self.number = 0
        self.errors: dict[int, SampleError] = {}
        self.blank: Tensor | None = None
        self.finished = 0
        self._context = context
        self._batch: Batch | None = None
        self._absent: tuple[logging.LogRecord, ...] = ()

    def finish(self, report: Report) -> None:
        """Take the result of a worker."""
        self._batch, self.errors = report.pinned or report.load()
        self._absent = report.absent
        self.finished = report.finished
        self.blank = self._batch.pop(BLANK, None) if self._batch is not None else None

    def result(self) -> Batch:
        """Return the batch as a dict.

        Raises:
            SampleError: the first sample that failed, unless failing samples are skipped.
        """
        if self._batch is None:
            raise self.errors[min(self.errors)]
        return self._batch

    def warn_of_absent_fields(self) -> None:
        """Warn of fields of `meta` that no sample of this batch has: they may be misspelt."""
        _log(self._absent)

    def describe(self, slot: int) -> str:
        return self._context.describe(int(self.step.samples[slot]))


class ProcessExecutor:
    """Executor that returns finished steps in the order given.

    If it is dropped, its workers stay with the pool, and finish their tasks for nothing.

    Args:
        jobs: made one by one in the caller's thread, when there is room.
        pool: the workers. If they do not persist, they end with the executor.
        stall_warning: seconds after which a wait is explained in the log.
        meter: of the workers' time; None for none.
    """

    def __init__(
        self,
        jobs: Iterator[RemoteJob],
        *,
        pool: WorkerPool,
        context: BatchContext,
        stall_warning: float,
        meter: Meter | None = None,
    ) -> None:
        self._jobs = jobs
        self._pool = pool
        self._context = context
        self._stall_warning = stall_warning
        self._meter = meter
        self._window: deque[RemoteJob] = deque()
        self._failure: Exception | None = None
        self._begun = False
        self._closed = False

    def next(self) -> RemoteJob:
        """Return the next step, finished.

        Raises:
            StopIteration: there are no more.
            DatapipeError: the executor was closed, or a worker died.
            BaseException: raised by a step.
        """
        if not self._begun:
            self._begun = True
            self._pool.begin(self)
        try:
            report = self._wait()
        except StopIteration:
            if self._failure:
                raise self._failure from None
            raise
        job = self._window.popleft()
        assert report.number == job.number, "batches come in the order of their tasks"
        _log(report.records)
        if self._meter is not None and report.tally is not None:
            self._meter.add(report.tally)
        if report.cached is not None and self._context.cache is not None:
            self._context.cache.counter.add(report.cached)
        try:
            if report.failure:
                error, trace = report.failure
                raise error from _InWorker(trace)
            job.finish(report)
        finally:
            self._pool.regions.release(report.region)
        return job

    def next_task(self) -> Task | None:
        """Return the next task for a worker; None if nothing is left."""
        if self._closed or self._failure:
            return None
        try:
            job = next(self._jobs, None)
        except Exception as error:  # raised after the steps before it
            self._failure = error
            return None
        if job is None:
            return None
        self._window.append(job)
        task = self._pool.prepare(job.step, None if self._meter is None else self._meter.options)
        job.number = task.number
        return task

    def ready(self) -> bool:
        """Return False, since the state of the next step is not known before it is asked for."""
        return False

    def close(self) -> None:
        """Leave the workers to the next executor, or end them."""
        if self._closed:
            return
        self._closed = True
        self._pool.leave(self)

    def _wait(self) -> Report:
        started = time.monotonic()
        patience = self._stall_warning
        while True:
            report = self._pool.next()
            if self._closed:
                raise DatapipeError("the loader was closed while its next batch was awaited")
            if report is not None:
                return report
            waited = time.monotonic() - started
            if waited >= patience:
                job = self._window[0]
                work = self._pool.watched(job.number)
                logger.warning("%s", describe_stall(waited, [describe_work(job, *w) for w in work]))
                patience = min(2 * patience, threading.TIMEOUT_MAX)


class _InWorker(Exception):
    """Traceback of a worker, as text."""

    def __init__(self, trace: str) -> None:
        super().__init__(f"in a worker process:\n{trace}")


def _log(records: tuple[logging.LogRecord, ...]) -> None:
    for record in records:
        target = logging.getLogger(record.name)
        if target.isEnabledFor(record.levelno):
            target.handle(record)
