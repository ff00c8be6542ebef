"""Entries in memory that worker processes share: a fixed part of the samples, in one buffer."""

from __future__ import annotations

import logging
import mmap
import os
import weakref

import numpy as np

from datapipe.array_types import Bools, UInt8
from datapipe.cache.entries import checksum_mark
from datapipe.cache.layout import EntryLayout
from datapipe.cache.tier import InPlace, Tier, TierRequest, Use, Uses
from datapipe.errors import DatapipeError
from datapipe.workers.messages import Descriptor

logger = logging.getLogger(__name__)


class SharedBytes:
    """Zeroed memory that processes share: an unnamed file, gone with the last of them.

    Pages are allocated when they are written to. DatapipeError if the system does not grant it.
    """

    def __init__(self, size: int) -> None:
        try:
            descriptor = os.memfd_create("datapipe-cache")
            try:
                os.ftruncate(descriptor, max(size, 1))
                self._open(descriptor, size)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise DatapipeError(
                f"{size:,} bytes of memory cannot be shared: {error.strerror}; give a smaller "
                "CacheSpec(memory=...)"
            ) from error

    def __reduce__(self) -> tuple[object, ...]:
        return _receive, (Descriptor(self._descriptor), len(self.bytes))

    def _open(self, descriptor: int, size: int) -> None:
        self.bytes: UInt8 = np.frombuffer(mmap.mmap(descriptor, max(size, 1)), np.uint8)[:size]
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False


def _receive(descriptor: Descriptor, size: int) -> SharedBytes:
    shared = SharedBytes.__new__(SharedBytes)
    shared._open(descriptor.number, size)
    return shared


class SharedMemoryTier(Tier):
    """Consecutive entries of an `EntryLayout`, for threads and processes at once.

    There is no lock. Workers that write the same entry write the same bytes, and then its mark,
    which is a checksum. A process on another processor may see the mark before the bytes, since
    nothing in Python orders writes to shared memory. So a process compares an entry with its mark
    before it reads it for the first time; what differs is not there yet. `shared` is the memory of
    the tier in another process.
    """

    name = "memory"

    def __init__(self, layout: EntryLayout, shared: SharedBytes | None = None) -> None:
        self.layout = layout
        self.expected, self.covered = layout.share, layout.first + layout.kept
        start = -(-8 * layout.kept // 64) * 64
        self._shared = SharedBytes(start + layout.bytes) if shared is None else shared
        self._marks = self._shared.bytes[: 8 * layout.kept].view(np.uint64)
        self._data: UInt8 = self._shared.bytes[start:]
        self._compared = np.zeros(layout.kept, bool)  # entries that this process may read

    def __reduce__(self) -> tuple[object, ...]:
        return SharedMemoryTier, (self.layout, self._shared)

    def describe(self, form: str) -> str:
        return f"{self.layout.describe(form)} in memory, a fixed part"

    def holds(self, uses: Uses) -> Bools:
        return self.layout.marked(uses.positions, self._marks)[1]

    def in_place(self, uses: Uses, wanted: Bools) -> InPlace:
        indices, held = self.layout.marked(uses.positions, self._marks)
        there = wanted & held
        new = there.copy()
        new[there] = ~self._compared[indices[there]]
        for slot in np.flatnonzero(new).tolist():
            there[slot] = self._is_whole(int(indices[slot]))
        found = indices[there]
        starts = np.full(len(indices), -1, np.int64)
        starts[there] = self.layout.offsets[found]
        size = int((self.layout.offsets[found + 1] - starts[there]).sum())
        return InPlace(self._data, starts, size)

    def get(self, use: Use) -> UInt8 | None:
        index = self.layout.index(use.position)
        return self._at(index) if index >= 0 and self._is_whole(index) else None

    def room(self, use: Use, size: int) -> UInt8 | None:
        index = self.layout.index(use.position)
        return None if index < 0 else self._at(index)[:size]

    def put(self, use: Use, entry: UInt8) -> bool:
        index = self.layout.index(use.position)
        if index < 0 or self._compared[index]:
            return False
        whole = self._at(index)
        if not np.may_share_memory(whole, entry):
            whole[: len(entry)] = entry
        self._marks[index] = checksum_mark(whole)
        self._compared[index] = True
        return True

    def _is_whole(self, index: int) -> bool:
        if not self._compared[index]:
            mark = int(self._marks[index])
            if not mark or mark != checksum_mark(self._at(index)):
                return False
            self._compared[index] = True
        return True

    def _at(self, index: int) -> UInt8:
        start, stop = self.layout.offsets[index : index + 2].tolist()
        return self._data[start:stop]


def shared_memory_tier(request: TierRequest) -> SharedMemoryTier | None:
    budget = request.spec.memory
    if budget is None or request.policy is not None:
        return None
    samples, before = len(request.dataset), request.covered or 0
    layout = EntryLayout(samples, request.sizes, int(budget), first=before)
    if not layout.kept and not before:
        logger.warning(
            "the cache keeps nothing in memory: no sample of %s fits into %s bytes; give more, "
            "such as '8GB'",
            *(request.dataset.title, f"{budget:,}"),
        )
    return SharedMemoryTier(layout)
