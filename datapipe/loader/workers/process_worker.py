"""Code of a worker process: tasks in, batches out.

The server that worker processes are forked from imports this module, so that they start with all
imports done.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import signal
import threading
import time
import traceback
from multiprocessing import connection, parent_process
from multiprocessing.reduction import ForkingPickler

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import get_worker_info

from datapipe.array_types import UInt8
from datapipe.errors import DatapipeError, SampleError
from datapipe.loader.batch.builder import BatchBuilder
from datapipe.loader.batch.context import BatchContext
from datapipe.loader.metrics.stage_clock import StageClock
from datapipe.loader.metrics.watch import Watch, WatchedJob
from datapipe.loader.workers.ipc import (
    BLANK,
    Recipe,
    Report,
    Task,
    TensorLocation,
    dump_batch,
    load_recipe,
)
from datapipe.loader.workers.prefetch import begin_step
from datapipe.loader.workers.shared_memory import SharedFile

_ALIGNMENT = 64  # bytes; what torch's own allocator grants


def begin_worker(number: int) -> None:
    """Make a fresh process a worker, which ignores Ctrl-C and ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, name="datapipe-parent", daemon=True).start()


def _follow_parent() -> None:
    # The server that forks workers lives as long as they do, so its end tells nothing.
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


class WorkerDataset(TorchDataset[Report]):
    """Maker of batches that `DataLoader` takes for a dataset, with tasks for indices.

    Args:
        recipe: of a `BatchContext`, see `dump_recipe`.
        level: of messages that the parent's log takes.
    """

    def __init__(self, recipe: Recipe, file: SharedFile, level: int) -> None:
        self._recipe = recipe
        self._file = file
        self._level = level
        self._context: BatchContext | None = None
        self._pool = RegionPool(file)
        self._log = _Log()
        self._clock: StageClock | None = None

    def __getitem__(self, task: Task) -> Report:
        """Do one task; the report has its result or its failure. Entry of a worker process."""
        report = Report(task.pool, task.number, task.region)
        info = get_worker_info()
        assert info is not None
        if task.clock is None:
            self._clock = None
        elif self._clock is None:
            self._clock = StageClock(f"worker {info.id}", task.clock)
        watch = BoardWatch(self._file, info.id, task.number, self._clock)
        try:
            context = self._context or self._open()
            self._pool.start(task.region)
            watch.collating()
            # All at once: reads that the loader's process begins ahead cannot be sent here.
            job = BatchBuilder(context, begin_step(context, task.step))
            for piece in range(job.pieces):
                if watch.is_stale():
                    break
                job.run(piece, watch)
            else:
                watch.collating()
                self._finish(job, report)
        except BaseException as error:  # raised again where batches are asked for
            report.content = None
            report.failure = _portable(error), traceback.format_exc()
        finally:
            watch.idle()
        report.records += self._log.take()
        report.finished = time.perf_counter_ns()
        if self._clock is not None:
            report.tally = self._clock.take()
        if self._context is not None and self._context.cache is not None:
            report.cached = self._context.cache.counter.take()
        return report

    def _finish(self, job: BatchBuilder, report: Report) -> None:
        report.records = self._log.take()
        job.warn_of_absent_fields()
        report.absent = self._log.take()
        try:
            batch = job.result()
            if job.blank is not None:
                batch[BLANK] = job.blank
        except SampleError:
            batch = None  # the parent raises it from among the errors
        report.content = dump_batch((batch, job.errors), self._pool.locate)
        report.used = self._pool.used

    def _open(self) -> BatchContext:
        logging.basicConfig(level=self._level, handlers=[self._log], force=True)
        context: BatchContext = load_recipe(self._recipe, self._pool)
        context.dataset.check_unchanged()
        self._context = context
        return context


class BoardWatch(Watch):
    """Watch that writes to memory which the parent reads."""

    def __init__(self, file: SharedFile, worker: int, task: int, clock: StageClock | None) -> None:
        super().__init__(clock)
        self._oldest = file.oldest
        self._row = file.board[worker : worker + 1]
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

    def is_stale(self) -> bool:
        """Return whether the task was dropped."""
        return bool(self._oldest[0] > self._task)


class RegionPool:
    """Pool of tensors in the region of the current batch."""

    def __init__(self, file: SharedFile) -> None:
        self._file = file
        self._region = 0
        self._buffers: dict[int, UInt8] = {}
        self._allocated: list[tuple[int, int, int]] = []  # address, its end, offset
        self.used = 0

    def start(self, region: int) -> None:
        """Begin a batch."""
        self._region = region
        self._allocated.clear()
        self.used = 0

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a tensor with undefined content."""
        size = math.prod(shape) * dtype.itemsize
        if size == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        offset = -(-self.used // _ALIGNMENT) * _ALIGNMENT
        self.used = offset + size
        buffer = self._buffers.get(self._region)
        if buffer is None or len(buffer) < self.used:
            buffer = self._buffers[self._region] = self._file.map(self._region, self.used)
        tensor = torch.from_numpy(buffer[offset : self.used]).view(dtype).view(shape)
        self._allocated.append((tensor.data_ptr(), tensor.data_ptr() + size, offset))
        return tensor

    def locate(self, tensor: Tensor) -> TensorLocation:
        """Return the location of a tensor. A tensor from elsewhere is copied into the region."""
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


class _Log(logging.Handler):
    """Handler that collects records for the parent's log."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[logging.LogRecord] = []

    def __reduce__(self) -> tuple[object, ...]:
        return (_Log, ())  # a lock cannot be sent

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args = record.getMessage(), None
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.exc_info = None
        self._records.append(record)

    def take(self) -> tuple[logging.LogRecord, ...]:
        taken, self._records = tuple(self._records), []
        return taken


def _portable(error: BaseException) -> BaseException:
    """Return the exception, or one with the same message if it cannot be pickled."""
    try:
        if type(pickle.loads(ForkingPickler.dumps(error))) is type(error):
            return error
    except Exception:  # whatever a user's class raises when it is pickled
        pass
    return DatapipeError(f"a worker process failed: {type(error).__name__}: {error}")
