"""Messages between a loader and its worker processes.

A batch comes back as a pickle in which tensors are locations in shared memory. Unlike torch's own
tensors between processes, it takes no descriptors and no space in `/dev/shm`, and nothing is lost
if it is never read. The sender pickles a message, so that it gets the error of a value that cannot
be pickled.
"""

from __future__ import annotations

import io
import logging
import pickle
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipe.array_types import UInt8
from datapipe.cache.memory import SharedBytes
from datapipe.cache.stats import Counts
from datapipe.errors import PlanError
from datapipe.index.files.npy import map_values
from datapipe.loader.batch.buffer_pool import BufferPool
from datapipe.loader.batch.context import StepJob
from datapipe.loader.metrics.stage_clock import ClockOptions, Tally
from datapipe.loader.workers.shared_memory import Regions

REGIONS: weakref.WeakValueDictionary[int, Regions] = weakref.WeakValueDictionary()
"""Regions of the batches of each pool of this process."""

BLANK = "\0blank"
"""Key under which a batch travels with the rows of `pixel_values` that hold no image."""

_COPIED = 1 << 20  # bytes; smaller tensors are copied, so they do not hold a whole batch


@dataclass(frozen=True, slots=True)
class Task:
    """Batch to make; `clock` has the options of the worker's clock, None for none."""

    pool: int
    number: int
    region: int
    step: StepJob
    clock: ClockOptions | None = None


@dataclass(slots=True)
class Report:
    """Result of a task.

    Attributes:
        pool, number, region: of the task.
        content: pickled result, see `dump_batch`; None if there is none.
        used: bytes of the region.
        records: log records of the task.
        absent: log records about fields that no sample has, for the first batch.
        failure: exception that ended the task, and its traceback as text.
        finished: end of the task, in nanoseconds of `time.perf_counter_ns`, which processes of a
            machine share.
        tally: of the worker's clock since its last report.
        cached: counts of the worker's cache since its last report.
        pinned: the result in page-locked memory.
    """

    pool: int
    number: int
    region: int
    content: bytes | None = None
    used: int = 0
    records: tuple[logging.LogRecord, ...] = ()
    absent: tuple[logging.LogRecord, ...] = ()
    failure: tuple[BaseException, str] | None = None
    finished: int = 0
    tally: Tally | None = None
    cached: Counts | None = None
    pinned: Any = None

    def load(self, pin: bool = False) -> Any:
        """Return the result, on the memory of its region; for the process that has the pool."""
        assert self.content is not None
        buffer = REGIONS[self.pool].buffer(self.region, self.used)
        return load_batch(self.content, buffer, pin)

    def pin_memory(self) -> Report:
        """Copy the result to page-locked memory; `DataLoader` calls it in a thread of its own."""
        if self.content is not None and self.pool in REGIONS:
            try:
                self.pinned = self.load(pin=True)
            except Exception as error:  # raised where batches are asked for
                self.failure = error, traceback.format_exc()
        return self


class TensorLocation(NamedTuple):
    """Location of a tensor in a region."""

    offset: int  # bytes from the start of the region
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_pooled: bool  # allocated by the pool; False for a copy


def dump_batch(value: object, locate: Callable[[Tensor], TensorLocation]) -> bytes:
    """Pickle a batch with the locations of its tensors, which `locate` returns."""
    buffer = io.BytesIO()
    _BatchPickler(buffer, locate).dump(value)
    return buffer.getvalue()


def load_batch(content: bytes, buffer: UInt8, pin: bool = False) -> Any:
    """Return a dumped batch, with tensors on `buffer`; small ones and pinned ones are copies."""
    return _BatchUnpickler(io.BytesIO(content), buffer, pin).load()


class Recipe(NamedTuple):
    """Pickled `BatchContext`, for another process that sees the same files.

    Attributes:
        content: the pickle.
        shared: memory that it refers to, by index; a process inherits it when it starts.
        needs_script: whether the main script must be imported to unpickle it.
    """

    content: bytes
    shared: tuple[SharedBytes, ...]
    needs_script: bool


def dump_recipe(context: object) -> Recipe:
    """Pickle a context.

    Raises:
        PlanError: a part of it, such as a user's function, cannot be sent.
    """
    buffer = io.BytesIO()
    pickler = _RecipePickler(buffer)
    try:
        pickler.dump(context)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise PlanError(
            f"workers='processes' sends functions to other processes, by name: {error}; define it "
            "at the top of a module, or use workers='threads'"
        ) from error
    return Recipe(buffer.getvalue(), tuple(pickler.shared), pickler.needs_script)


def load_recipe(recipe: Recipe, pool: object) -> Any:
    """Return a dumped context, with another pool of memory."""
    return _RecipeUnpickler(io.BytesIO(recipe.content), pool, recipe.shared).load()


class _BatchPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, locate: Callable[[Tensor], TensorLocation]) -> None:
        super().__init__(file, protocol=5)
        self._locate = locate
        self._locations: dict[int, tuple[int, TensorLocation]] = {}  # by identity of the tensor

    def persistent_id(self, obj: Any) -> tuple[int, TensorLocation] | None:
        if type(obj) is not Tensor or obj.layout is not torch.strided or obj.device.type != "cpu":
            return None
        if id(obj) not in self._locations:
            self._locations[id(obj)] = len(self._locations), self._locate(obj.detach())
        return self._locations[id(obj)]


class _BatchUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, buffer: UInt8, pin: bool) -> None:
        super().__init__(file)
        self._buffer = buffer
        self._pin = pin
        self._tensors: dict[int, Tensor] = {}

    def persistent_load(self, pid: tuple[int, TensorLocation]) -> Tensor:
        number, location = pid
        if number not in self._tensors:
            self._tensors[number] = self._view(location)
        return self._tensors[number]

    def _view(self, location: TensorLocation) -> Tensor:
        if 0 in location.shape:
            return torch.empty(location.shape, dtype=location.dtype, device="cpu")
        last = sum((n - 1) * step for n, step in zip(location.shape, location.stride, strict=True))
        size = (last + 1) * location.dtype.itemsize
        flat = torch.from_numpy(self._buffer[location.offset : location.offset + size])
        tensor = flat.view(location.dtype).as_strided(location.shape, location.stride)
        if self._pin:
            return tensor.pin_memory()
        return tensor if location.is_pooled or size >= _COPIED else tensor.clone()


class _RecipePickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.needs_script = False
        self.shared: list[SharedBytes] = []

    def persistent_id(self, obj: Any) -> str | int | None:
        if isinstance(obj, SharedBytes):
            self.shared.append(obj)
            return len(self.shared) - 1
        # The other process has a pool of its own.
        return "pool" if isinstance(obj, BufferPool) else None

    def reducer_override(self, obj: Any) -> Any:
        if getattr(obj, "__module__", None) == "__main__":
            self.needs_script = True
        if isinstance(obj, np.ndarray) and (mapped := _mapped_from(obj)):
            return _map_again, mapped
        return NotImplemented


class _RecipeUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, pool: object, shared: tuple[SharedBytes, ...]) -> None:
        super().__init__(file)
        self._pool = pool
        self._shared = shared

    def persistent_load(self, pid: str | int) -> object:
        return self._pool if isinstance(pid, str) else self._shared[pid]


def _mapped_from(array: Any) -> tuple[str, int, str, tuple[int, ...]] | None:
    """Return file, offset, dtype and shape of a memory-mapped array; None for any other."""
    whole, base = None, array
    while isinstance(base, np.ndarray):
        # A slice of a map has the offset of the whole map, which is the last base.
        whole = base if isinstance(base, np.memmap) else whole
        base = base.base
    if whole is None or not whole.filename or whole.mode != "r":
        return None
    if not array.size or not array.flags.c_contiguous:
        return None
    start = whole.offset + array.ctypes.data - whole.ctypes.data
    return str(whole.filename), start, array.dtype.str, array.shape


def _map_again(name: str, start: int, dtype: str, shape: tuple[int, ...]) -> Any:
    return map_values(name, dtype, start, shape)
