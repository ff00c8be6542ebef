"""Steps in worker processes, for transforms that hold the GIL.

A worker makes a whole batch, with the same bits as threads.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from datapipe.errors import PlanError, SampleError, WorkerError
from datapipe.loader.batch.buffer_pool import BufferPool
from datapipe.loader.batch.builder import Batch
from datapipe.loader.batch.context import BatchContext, StepJob
from datapipe.loader.metrics.meter import Meter
from datapipe.loader.metrics.stage_clock import describe_work
from datapipe.loader.workers.executor import PinnedResults, StepWorkers
from datapipe.loader.workers.ipc import BatchTask, Report, load_batch, reduce_array
from datapipe.loader.workers.process_worker import BatchWorkerFactory, RegionPool
from datapipe.loader.workers.shared_memory import Regions, SharedFile
from datapipe.workers.processes import ProcessPool
from datapipe.workers.protocol import Results
from datapipe.workers.template import warm_up

_MODULES = ["datapipe.loader.workers.process_worker"]


class RemoteJob:
    """Step whose batch is made in a worker process; the loader uses it as a `BatchBuilder`."""

    def __init__(self, context: BatchContext, step: StepJob) -> None:
        self.step = step
        self.task: BatchTask | None = None  # that was sent, until its result is taken
        self.errors: dict[int, SampleError] = {}
        self.blank: Tensor | None = None
        self.finished = 0
        self._context = context
        self._batch: Batch | None = None

    def finish(self, report: Report, result: Any, meter: Meter | None) -> None:
        """Take the report of the worker, and its batch with blank rows and errors."""
        for record in report.records:
            target = logging.getLogger(record.name)
            if target.isEnabledFor(record.levelno):
                target.handle(record)
        if meter is not None and report.tally is not None:
            meter.add(report.tally)
        cache = self._context.cache
        if report.cached is not None and cache is not None:
            cache.counter.add(report.cached)
        self._batch, self.blank, self.errors = result
        self.finished = report.finished
        self.task = None

    def result(self) -> Batch:
        """Return the batch, or raise the error of the first sample, unless such are skipped."""
        if self._batch is None:
            raise self.errors[min(self.errors)]
        return self._batch

    def describe(self, slot: int) -> str:
        return self._context.describe(int(self.step.samples[slot]))


class ProcessSteps(StepWorkers[RemoteJob]):
    """Worker processes of a loader and the memory of their batches, for one run after another.

    Each worker has a copy of the context; `PlanError` if it cannot be sent. They start with the
    first run, and end with it unless they are persistent. `prefetch_factor` batches per process are
    begun or queued.
    """

    def __init__(self, context: BatchContext) -> None:
        options = context.options
        workers, ahead = options.num_workers, options.prefetch_factor
        self.meter: Meter | None = None  # of the current run
        self._persistent = options.workers.persistent
        self._pin = context.pinned
        # Tasks of a run, and those that workers may still be at after a run was closed.
        self._file = file = SharedFile(workers * (ahead + 1))
        # Prepared batches, the one in use and the one before it.
        self._regions = Regions(file, workers * ahead + 2)
        self._tasks = itertools.count(1)  # of all runs
        try:
            self._pool: ProcessPool[BatchTask, Report] = ProcessPool(
                BatchWorkerFactory(
                    context=context,
                    file=file,
                    level=logging.getLogger("datapipe").getEffectiveLevel(),
                ),
                workers,
                ahead=ahead,
                modules=_MODULES,
                describe=lambda task: context.describe_step(task.step),
                remedy="use fewer num_workers, or a smaller prefetch_factor or batch_size",
                reducers={
                    np.ndarray: reduce_array,
                    np.memmap: reduce_array,
                    BufferPool: lambda pool: (RegionPool, (file,)),
                },
            )
        except WorkerError as error:
            raise PlanError(f"workers='processes': {error}") from error
        warm_up(_MODULES)

    def run(self, jobs: Iterator[RemoteJob]) -> Results[Any]:
        results = self._pool.run(map(self._task, jobs))
        return PinnedResults(results, self._load) if self._pin else results

    def finish(self, job: RemoteJob, result: tuple[Report, Any] | Report) -> None:
        report, batch = self._load(result) if isinstance(result, Report) else result
        job.finish(report, batch, self.meter)

    def describe(self, job: RemoteJob) -> list[str]:
        assert job.task is not None
        (row,) = self._file.row(job.task.number)
        if row["task"] != job.task.number:
            return []
        seconds = time.monotonic() - float(row["since"])
        return [describe_work(job, int(row["slot"]), row["stage"].decode(), seconds)]

    def end(self) -> None:
        if not self._persistent:
            self.close()

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()

    def _task(self, job: RemoteJob) -> BatchTask:
        clock = None if self.meter is None else self.meter.options
        job.task = BatchTask(next(self._tasks), self._regions.allocate(), job.step, clock)
        return job.task

    def _load(self, report: Report) -> tuple[Report, Any]:
        """Return a report with the batch, on the memory of its region or in page-locked memory."""
        buffer = self._regions.buffer(report.region, report.content.stop)
        return report, load_batch(buffer[report.content].data, buffer, self._pin)
