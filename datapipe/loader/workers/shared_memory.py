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
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np

from datapipe.array_types import UInt8
from datapipe.errors import DatapipeError
from datapipe.loader.batch.buffer_pool import is_free

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
"""Current work of a worker: number of its task (-1 for none), slot of the batch, time at which it
began (`time.monotonic`), stage."""


class SharedFile:
    """Unnamed file that each process maps.

    Attributes:
        oldest: int64 [1]; workers skip tasks with smaller numbers.
        board: `BOARD` [workers]; each worker writes its own row.

    Raises:
        DatapipeError: the system grants no such file.
    """

    def __init__(self, workers: int) -> None:
        try:
            descriptor = os.memfd_create("datapipe-batches")
            os.ftruncate(descriptor, _header_size(workers))
        except OSError as error:
            raise DatapipeError(
                f"no memory can be shared with worker processes: {error.strerror}; use "
                "workers='threads'"
            ) from error
        self._open(descriptor, workers)
        self.board["task"] = -1

    def __reduce__(self) -> tuple[object, ...]:
        # Only while a process is being started, which inherits the descriptor.
        return _receive, (DupFd(self._descriptor), self._workers)

    def _open(self, descriptor: int, workers: int) -> None:
        self._descriptor = descriptor
        self._workers = workers
        weakref.finalize(self, os.close, descriptor).atexit = False
        header = np.frombuffer(mmap.mmap(descriptor, _header_size(workers)), np.uint8)
        self.oldest = header[:8].view(np.int64)
        self.board = header[64 : 64 + workers * BOARD.itemsize].view(BOARD)
        self._maps: dict[int, mmap.mmap] = {}

    def add(self, region: int) -> None:
        """Enlarge the file for a region. For the process that made the file."""
        try:
            os.ftruncate(self._descriptor, _header_size(self._workers) + (region + 1) * _SPAN)
        except OSError as error:
            raise DatapipeError(
                f"the memory that is shared with worker processes cannot grow: {error.strerror}; "
                "hold fewer batches at a time, or use workers='threads'"
            ) from error

    def map(self, region: int, size: int) -> UInt8:
        """Return the first `size` bytes of a region, or more, shared by all processes.

        Raises:
            DatapipeError: the system grants no addresses.
        """
        assert size <= _SPAN, "no batch is that large"
        length = max(_LEAST, 1 << (size - 1).bit_length())
        try:
            shared = mmap.mmap(
                self._descriptor, length, offset=_header_size(self._workers) + region * _SPAN
            )
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


def _header_size(workers: int) -> int:
    used = 64 + workers * BOARD.itemsize
    return -(-used // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def _receive(duplicate: Any, workers: int) -> SharedFile:
    file = SharedFile.__new__(SharedFile)
    file._open(duplicate.detach(), workers)
    return file


class Regions:
    """Allocator of the regions of a file; for one thread of the loader's process.

    Args:
        keep: number of free regions that keep their pages.
    """

    def __init__(self, file: SharedFile, keep: int) -> None:
        self._file = file
        self._keep = keep
        # By region; `_UNMAPPED` if it is not mapped. Every tensor there refers to its buffer.
        self._buffers: list[UInt8] = []
        self._pending: set[int] = set()  # of tasks whose batch did not come back yet
        self._order: list[int] = []  # regions with pages, least recently used first

    @property
    def warm(self) -> int:
        """Number of regions with pages."""
        return len(self._order)

    def allocate(self) -> int:
        """Return a region for a new batch, one that has pages if possible."""
        free = [region for region in self._order if self._is_free(region)]
        while len(self._order) > self._keep and len(free) > 1:
            self._clear(free.pop(0))
        region = free[-1] if free else self._unmapped()
        self._pending.add(region)
        return region

    def buffer(self, region: int, size: int) -> UInt8:
        """Return at least `size` bytes of an allocated region; references to them hold it."""
        if len(self._buffers[region]) < size:
            self._buffers[region] = self._file.map(region, size)
        return self._buffers[region]

    def release(self, region: int) -> None:
        """End the task of a region, which is free once no tensor refers to it."""
        self._pending.discard(region)
        if region in self._order:
            self._order.remove(region)
        if len(self._buffers[region]):
            self._order.append(region)

    def release_all(self) -> None:
        """End all tasks."""
        for region in list(self._pending):
            self.release(region)

    def _is_free(self, region: int) -> bool:
        return region not in self._pending and is_free(self._buffers, region)

    def _unmapped(self) -> int:
        for region, buffer in enumerate(self._buffers):
            if buffer is _UNMAPPED and region not in self._pending:
                return region
        self._file.add(len(self._buffers))
        self._buffers.append(_UNMAPPED)
        return len(self._buffers) - 1

    def _clear(self, region: int) -> None:
        self._order.remove(region)
        self._buffers[region] = _UNMAPPED
        self._file.clear(region)
