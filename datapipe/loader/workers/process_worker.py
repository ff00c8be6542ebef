"""Code of a worker process: tasks in, batches out."""

from __future__ import annotations

import logging
import math
import os
import time
from dataclasses import dataclass
from logging.handlers import QueueHandler
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipe.array_types import UInt8
from datapipe.errors import SampleError
from datapipe.loader.batch.builder import BatchBuilder
from datapipe.loader.batch.context import BatchContext
from datapipe.loader.metrics.stage_clock import StageClock, Watch, WatchedJob
from datapipe.loader.workers.ipc import BatchTask, Report, TensorLocation, dump_batch
from datapipe.loader.workers.prefetch import begin_step
from datapipe.loader.workers.shared_memory import SharedFile

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
    level: int  # of messages that the parent's log takes

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
        """Begin the collate stage, which is of no sample."""
        if self._clock is not None:
            self._clock.at("collate")

    def idle(self) -> None:
        self._row["task"] = -1
        super().idle()
