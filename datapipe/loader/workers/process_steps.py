"""Steps in worker processes, for transforms that hold the GIL.

A worker makes a whole batch, with the same bits as threads.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from logging.handlers import QueueHandler
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipe.array_types import UInt8
from datapipe.errors import PlanError, SampleError, WorkerError
from datapipe.loader.batch.buffer_pool import BufferPool
from datapipe.loader.batch.builder import Batch, BatchBuilder
from datapipe.loader.batch.context import BatchContext, StepJob
from datapipe.loader.metrics.meter import Meter
from datapipe.loader.metrics.stage_clock import StageClock, Watch, WatchedJob, describe_work
from datapipe.loader.workers.executor import PinnedResults, StepWorkers
from datapipe.loader.workers.ipc import (
    BatchTask,
    Report,
    TensorLocation,
    dump_batch,
    load_batch,
    reduce_array,
)
from datapipe.loader.workers.prefetch import begin_step
from datapipe.loader.workers.shared_memory import Regions, SharedFile
from datapipe.workers.processes import ProcessPool
from datapipe.workers.protocol import Results
from datapipe.workers.template import warm_up

_MODULES = ["datapipe.loader.workers.process_steps"]
_ALIGNMENT = 64  # bytes; what torch's own allocator grants


class RegionPool:
    """Pool of tensors in the region of the current batch."""

    def __init__(self, file: SharedFile) -> None:
        self._file = file
        self._region = 0
        self._regions: dict[int, UInt8] = {}
        self._allocated: list[tuple[int, int, int]] = []  # address, its end, offset
        self.used = 0

    def start(self, region: int) -> None:
        self._region = region
        self._allocated.clear()
        self.used = 0

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a tensor with undefined content."""
        size = math.prod(shape) * dtype.itemsize
        if size == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        buffer, offset = self._take(size)
        tensor = torch.from_numpy(buffer).view(dtype).view(shape)
        self._allocated.append((tensor.data_ptr(), tensor.data_ptr() + size, offset))
        return tensor

    def write(self, content: bytes) -> slice:
        """Write bytes into the region; return where they are."""
        buffer, offset = self._take(len(content))
        buffer[:] = np.frombuffer(content, np.uint8)
        return slice(offset, self.used)

    @property
    def written(self) -> UInt8:
        """Bytes of the current batch."""
        return self._regions[self._region][: self.used]

    def locate(self, tensor: Tensor) -> TensorLocation | None:
        """Return the location of a tensor. A tensor from elsewhere is copied into the region."""
        if tensor.device.type != "cpu":
            return None
        shape, dtype = tuple(tensor.shape), tensor.dtype
        start = tensor.data_ptr()
        for first, stop, offset in self._allocated:
            if tensor.numel() and first <= start < stop:
                return TensorLocation(offset + start - first, shape, tensor.stride(), dtype, True)
        # Strides of a copy: `channels_last` stays, repeated rows do not.
        stride = torch.empty_like(tensor, device="meta").stride()
        copy = self.allocate((tensor.numel(),), dtype)
        copy.as_strided(shape, stride).copy_(tensor)
        offset = self._allocated.pop()[2] if tensor.numel() else 0
        return TensorLocation(offset, shape, stride, dtype, False)

    def _take(self, size: int) -> tuple[UInt8, int]:
        offset = -(-self.used // _ALIGNMENT) * _ALIGNMENT
        self.used = offset + size
        buffer = self._regions.get(self._region)
        if buffer is None or len(buffer) < self.used:
            buffer = self._regions[self._region] = self._file.map(self._region, self.used)
        return buffer[offset : self.used], offset


@dataclass(frozen=True, kw_only=True)
class BatchWorkerFactory:
    """Factory for the worker of a process."""

    context: BatchContext  # with a `RegionPool` for its pool
    file: SharedFile  # memory for the batches
    # Of messages that the parent's log takes
    level: int = field(default_factory=logging.getLogger("datapipe").getEffectiveLevel)

    def __call__(self) -> BatchWorker:
        torch.set_num_threads(1)
        log: SimpleQueue[logging.LogRecord] = SimpleQueue()
        logging.basicConfig(
            level=self.level, handlers=[QueueHandler(log)], format="%(message)s", force=True
        )
        self.context.dataset.check_unchanged()
        images = self.context.images
        pool: Any = RegionPool(self.file) if images is None else images.pool
        return BatchWorker(self.context, self.file, pool, log)


def context_reducers(file: SharedFile) -> dict[type, Callable[[Any], Any]]:
    """Return the functions that reduce the arrays and the pool of a context for a worker."""
    pool = RegionPool, (file,)
    return {np.ndarray: reduce_array, np.memmap: reduce_array, BufferPool: lambda _: pool}


@dataclass
class BatchWorker:
    """Maker of whole batches, in a worker process."""

    context: BatchContext
    file: SharedFile
    pool: RegionPool
    log: SimpleQueue[logging.LogRecord]
    clock: StageClock | None = None

    def __call__(self, task: BatchTask) -> Report:
        if task.clock is None:
            self.clock = None
        elif self.clock is None:
            self.clock = StageClock(f"worker {os.getpid()}", task.clock)
        watch = BoardWatch(self.file, task.number, self.clock)
        try:
            self.pool.start(task.region.number)
            watch.collating()
            # All at once: reads that the loader's process begins ahead cannot be sent here.
            job = BatchBuilder(self.context, begin_step(self.context, task.step))
            for piece in range(job.pieces):
                job.run(piece, watch)
            watch.collating()
            try:
                batch = job.result()
            except SampleError:
                batch = None  # the parent raises it from among the errors
            content = dump_batch((batch, job.blank, job.errors), self.pool.locate)
            written = self.pool.write(content)
        finally:
            watch.idle()
        cache = self.context.cache
        return Report(
            region=task.region.number,
            content=written,
            records=tuple(self.log.get() for _ in range(self.log.qsize())),
            finished=time.perf_counter_ns(),
            tally=None if self.clock is None else self.clock.take(),
            cached=None if cache is None else cache.counter.take(),
        )


class BoardWatch(Watch):
    """Watch that writes to memory which the parent reads."""

    def __init__(self, file: SharedFile, task: int, clock: StageClock | None) -> None:
        super().__init__(clock)
        self._row = file.row(task)
        self._task = task

    def at(self, job: WatchedJob, slot: int, stage: str) -> None:
        self._row[0] = (self._task, slot, time.monotonic(), stage.encode()[:32])
        if self._clock is not None:
            self._clock.at(stage)

    def collating(self) -> None:
        """Begin the collate stage, which belongs to no single sample."""
        if self._clock is not None:
            self._clock.at("collate")

    def idle(self) -> None:
        self._row["task"] = -1
        super().idle()


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
                BatchWorkerFactory(context=context, file=file),
                workers,
                ahead=ahead,
                modules=_MODULES,
                describe=lambda task: context.describe_step(task.step),
                remedy="use fewer num_workers, or a smaller prefetch_factor or batch_size",
                reducers=context_reducers(file),
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
