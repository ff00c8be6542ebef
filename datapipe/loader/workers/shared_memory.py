"""Memory that a loader shares with its worker processes, reused once a batch is gone.

It is one unnamed file, so nothing of it survives the processes, and it does not count against
`/dev/shm`, which containers keep small. A batch has a region in it. The file is sparse: regions are
further apart than any batch is large, and have pages only where something was written. To touch
pages for the first time costs more than to write to them, so a region is reused once Python's
reference count says that no tensor refers to it.
"""

from __future__ import annotations

import mmap
import os
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from datapipe.array_types import UInt8
from datapipe.errors import DatapipeError
from datapipe.loader.batch.buffer_pool import is_free
from datapipe.workers.messages import Descriptor

_SPAN = 1 << 36  # bytes of address space between regions
_LEAST = 1 << 21  # bytes that are mapped at once
_UNMAPPED = np.empty(0, np.uint8)

BOARD = np.dtype(
    {
        "names": ["task", "slot", "since", "stage"],
        "formats": ["<i8", "<i8", "<f8", "S32"],
        "itemsize": 64,
    }
)
"""Current work at a task: its number (-1 for none), slot of the batch, time at which it began
(`time.monotonic`), stage."""


class SharedFile:
    """Unnamed file that each process maps; `DatapipeError` if the system grants none.

    Workers may be at `tasks` together; the worker of a task writes to its row of `board`.
    `received` is the file, in another process.
    """

    def __init__(self, tasks: int, received: Descriptor | None = None) -> None:
        used = tasks * BOARD.itemsize
        self._header = -(-used // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        try:
            self._file = received or Descriptor(os.memfd_create("datapipe-batches"))
            weakref.finalize(self, os.close, self._file.number).atexit = False
            if received is None:
                os.ftruncate(self._file.number, self._header)
        except OSError as error:
            raise DatapipeError(
                f"no memory can be shared with worker processes: {error.strerror}; use "
                "workers='threads'"
            ) from error
        header = np.frombuffer(mmap.mmap(self._file.number, self._header), np.uint8)
        self.board = header[:used].view(BOARD)
        if received is None:
            self.board["task"] = -1
        self._maps: dict[int, mmap.mmap] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return SharedFile, (len(self.board), self._file)

    def row(self, task: int) -> Any:
        """Return the row of the board for the task with a number: `BOARD` [1]."""
        index = task % len(self.board)
        return self.board[index : index + 1]

    def add(self, region: int) -> None:
        """Enlarge the file for a region. For the process that made the file."""
        try:
            os.ftruncate(self._file.number, self._header + (region + 1) * _SPAN)
        except OSError as error:
            raise DatapipeError(
                f"the memory that is shared with worker processes cannot grow: {error.strerror}; "
                "hold fewer batches at a time, or use workers='threads'"
            ) from error

    def map(self, region: int, size: int) -> UInt8:
        """Return the first `size` bytes of a region, or more, shared by all processes."""
        assert size <= _SPAN, "no batch is that large"
        length = max(_LEAST, 1 << (size - 1).bit_length())
        try:
            shared = mmap.mmap(self._file.number, length, offset=self._header + region * _SPAN)
        except (OSError, ValueError) as error:
            raise DatapipeError(
                f"{length:,} bytes of memory shared with worker processes cannot be mapped: "
                f"{error}; raise `ulimit -v`, or use a smaller batch_size"
            ) from error
        self._maps[region] = shared
        return np.frombuffer(shared, np.uint8)

    def clear(self, region: int) -> None:
        """Give the pages of a mapped region back to the system."""
        self._maps.pop(region).madvise(mmap.MADV_REMOVE)


@dataclass(frozen=True)
class Region:
    """Region for the batch of a task, which is not used again while this object exists."""

    number: int


class Regions:
    """Allocator of a file's regions, in the loader's process; `keep` free ones keep their pages."""

    def __init__(self, file: SharedFile, keep: int) -> None:
        self._file = file
        self._keep = keep
        # By region; `_UNMAPPED` if it is not mapped. Every tensor there refers to its buffer.
        self._buffers: list[UInt8] = []
        self._tasks: list[weakref.ref[Region]] = []
        self._order: list[int] = []  # regions with pages, least recently used first

    @property
    def warm(self) -> int:
        """Number of regions with pages."""
        return len(self._order)

    def allocate(self) -> Region:
        """Return a region for a new batch, one that has pages if possible."""
        buffers, tasks = self._buffers, self._tasks
        free = [n for n in self._order if tasks[n]() is None and is_free(buffers, n)]
        while len(self._order) > self._keep and len(free) > 1:
            number = free.pop(0)
            self._order.remove(number)
            buffers[number] = _UNMAPPED
            self._file.clear(number)
        region = Region(free[-1] if free else self._unmapped())
        self._tasks[region.number] = weakref.ref(region)
        return region

    def buffer(self, number: int, size: int) -> UInt8:
        """Return at least `size` bytes of an allocated region; references to them hold it."""
        if len(self._buffers[number]) < size:
            self._buffers[number] = self._file.map(number, size)
        if number in self._order:
            self._order.remove(number)
        self._order.append(number)
        return self._buffers[number]

    def _unmapped(self) -> int:
        for number, buffer in enumerate(self._buffers):
            if buffer is _UNMAPPED and self._tasks[number]() is None:
                return number
        self._file.add(len(self._buffers))
        self._buffers.append(_UNMAPPED)
        self._tasks.append(weakref.ref(Region(-1)))
        return len(self._buffers) - 1
