"""Messages between a loader and its worker processes.

A batch comes back as a pickle in which tensors are locations in shared memory. Unlike torch's own
tensors between processes, it takes no descriptors and no space in `/dev/shm`, and nothing is lost
if it is never read. The pickle is in shared memory too, so that a message is small, and a worker
never waits until it is read.
"""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipe.array_types import UInt8
from datapipe.cache.sample_cache import Counts
from datapipe.index.files.npy import map_values, mapped_from
from datapipe.loader.batch.context import StepJob
from datapipe.loader.metrics.stage_clock import ClockOptions, Tally
from datapipe.loader.workers.shared_memory import Region

_COPIED = 1 << 20  # bytes; smaller tensors are copied, so they do not hold a whole batch


@dataclass(frozen=True, slots=True)
class BatchTask:
    """Batch to make; `clock` has the options of the worker's clock, None for none."""

    number: int
    region: Region
    step: StepJob
    clock: ClockOptions | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a task."""

    region: int  # that the batch is in
    content: slice  # bytes of the region between which the pickled result is, see `dump_batch`
    records: tuple[logging.LogRecord, ...]  # log records of the task
    finished: int  # in nanoseconds of `time.perf_counter_ns`, which processes of a machine share
    tally: Tally | None  # of the worker's clock since its last report
    cached: Counts | None  # counts of the worker's cache since its last report


class TensorLocation(NamedTuple):
    """Location of a tensor in a region."""

    offset: int  # bytes from the start of the region
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_pooled: bool  # allocated by the pool; False for a copy


def dump_batch(value: object, locate: Callable[[Tensor], object]) -> bytes:
    """Pickle a batch with what `locate` returns for each of its tensors; None pickles it whole."""
    buffer = io.BytesIO()
    _BatchPickler(buffer, locate).dump(value)
    return buffer.getvalue()


def load_tensors(content: bytes | memoryview, find: Callable[[Any], Tensor]) -> Any:
    """Return a dumped batch, with the tensor that `find` returns for each location."""
    return _BatchUnpickler(io.BytesIO(content), find).load()


def load_batch(content: bytes | memoryview, buffer: UInt8, pin: bool = False) -> Any:
    """Return a dumped batch, with tensors on `buffer`; small ones and pinned ones are copies."""

    def view(location: TensorLocation) -> Tensor:
        if 0 in location.shape:
            return torch.empty(location.shape, dtype=location.dtype, device="cpu")
        last = sum((n - 1) * step for n, step in zip(location.shape, location.stride, strict=True))
        size = (last + 1) * location.dtype.itemsize
        flat = torch.from_numpy(buffer[location.offset : location.offset + size])
        tensor = flat.view(location.dtype).as_strided(location.shape, location.stride)
        if pin:
            return tensor.pin_memory()
        return tensor if location.is_pooled or size >= _COPIED else tensor.clone()

    return load_tensors(content, view)


class _BatchPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, locate: Callable[[Tensor], object]) -> None:
        super().__init__(file, protocol=5)
        self._locate = locate
        self._locations: dict[int, tuple[int, object]] = {}  # by identity of the tensor

    def persistent_id(self, obj: Any) -> tuple[int, object] | None:
        if type(obj) is not Tensor or obj.layout is not torch.strided:
            return None
        if id(obj) not in self._locations:
            self._locations[id(obj)] = len(self._locations), self._locate(obj.detach())
        found = self._locations[id(obj)]
        return None if found[1] is None else found


class _BatchUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, find: Callable[[Any], Tensor]) -> None:
        super().__init__(file)
        self._find = cache(lambda number, location: find(location))

    def persistent_load(self, pid: tuple[int, Any]) -> Tensor:
        return self._find(*pid)


def reduce_array(array: Any) -> Any:
    """Reduce an array for another process; one that is mapped from a file is mapped again there."""
    if (mapped := mapped_from(array)) is None:
        return array.__reduce_ex__(5)
    path, start = mapped
    return map_values, (path, array.dtype.str, start, array.shape)
