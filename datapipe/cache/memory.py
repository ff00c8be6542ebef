"""Entries in memory: a fixed part in one buffer, or those that an eviction policy keeps."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from typing import Any

import numpy as np

from datapipe.array_types import Bools, Int64, UInt8
from datapipe.cache.layout import EntryLayout, Use
from datapipe.cache.next_use import Lru, NextUse
from datapipe.errors import DatapipeError
from datapipe.workers.messages import Descriptor


class SharedBytes:
    """Zeroed memory that processes share: an unnamed file, gone with the last of them.

    Pages are allocated when they are written to.

    Raises:
        DatapipeError: the system does not grant it.
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


class FixedEntries:
    """Consecutive entries of an `EntryLayout`. For threads and processes at once.

    There is no lock. An entry is valid once its mark is set, and workers that write the same entry
    write the same bytes.
    """

    evicted = 0

    def __init__(self, layout: EntryLayout) -> None:
        self.layout = layout
        self._start = -(-layout.kept // 64) * 64
        self._shared = SharedBytes(self._start + layout.bytes)
        self._map()

    def _map(self) -> None:
        self._present = self._shared.bytes[: self.layout.kept]
        self.data: UInt8 = self._shared.bytes[self._start :]

    def __getstate__(self) -> dict[str, Any]:
        return {"layout": self.layout, "_start": self._start, "_shared": self._shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._map()

    def holds(self, samples: Int64) -> Bools:
        """Return whether the entry of each sample is there: bool [n]."""
        indices = self.layout.places(samples)
        held = indices >= 0
        held[held] = self._present[indices[held]] != 0
        return held

    def entries(self, indices: Int64) -> tuple[Int64, int]:
        """Return the offset in `data` of each entry, int64 [n], and the bytes of all of them.

        The offset is -1 for an index of -1 and for an entry that is not there.
        """
        there = indices >= 0
        there[there] = self._present[indices[there]] != 0
        found = indices[there]
        starts = np.full(len(indices), -1, np.int64)
        starts[there] = self.layout.offsets[found]
        return starts, int((self.layout.offsets[found + 1] - starts[there]).sum())

    def find(self, use: Use) -> UInt8 | None:
        """Return the entry of a sample, if it is there, for reading."""
        index = use.memory
        return self._at(index) if index >= 0 and self._present[index] else None

    def room(self, use: Use, size: int) -> UInt8 | None:
        """Return memory for an entry of `size` bytes; None if it is not to be kept."""
        return None if use.memory < 0 else self._at(use.memory)[:size]

    def keep(self, use: Use, entry: UInt8) -> None:
        """Keep an entry that was written to the memory that `room` returned, or elsewhere."""
        if use.memory < 0:
            return
        here = self._at(use.memory)[: len(entry)]
        if here.__array_interface__["data"][0] != entry.__array_interface__["data"][0]:
            here[:] = entry
        self._present[use.memory] = 1

    def wants(self, use: Use, size: int) -> bool:
        """Return whether the entry of a sample would be kept."""
        return use.memory >= 0

    def _at(self, index: int) -> UInt8:
        start, stop = self.layout.offsets[index : index + 2].tolist()
        return self.data[start:stop]


class EvictedEntries:
    """Entries that a policy keeps and evicts. For the threads of one process.

    An entry that was returned stays valid while it is referred to, also after its eviction.

    Attributes:
        budget: of its policy, in bytes.
        evicted: number of evicted entries.
    """

    def __init__(self, policy: NextUse | Lru) -> None:
        self._policy = policy
        self.budget = policy.budget
        self._entries: dict[int, UInt8] = {}
        self._lock = threading.Lock()
        self.evicted = 0

    def holds(self, samples: Int64) -> Bools:
        """Return whether the entry of each sample is there just now: bool [n]."""
        return np.array([sample in self._entries for sample in samples.tolist()], bool)

    def find(self, use: Use) -> UInt8 | None:
        """Return the entry of a sample, if it is there, for reading."""
        with self._lock:
            entry = self._entries.get(use.sample)
            if entry is not None:
                self._policy.use(use.sample, use.next)
                if use.sample not in self._policy:
                    del self._entries[use.sample]
            return entry

    def room(self, use: Use, size: int) -> UInt8 | None:
        """Return memory for an entry of `size` bytes; None if it is not to be kept."""
        return np.empty(size, np.uint8) if self.wants(use, size) else None

    def wants(self, use: Use, size: int) -> bool:
        """Return whether the entry of a sample would be kept."""
        with self._lock:
            return self._policy.would_keep(use.sample, size, use.next)

    def keep(self, use: Use, entry: UInt8) -> None:
        """Keep an entry that was written to the memory that `room` returned."""
        with self._lock:
            kept, going = self._policy.offer(use.sample, len(entry), use.next)
            for other in going:
                del self._entries[other]
            self.evicted += len(going)
            if kept:
                self._entries[use.sample] = entry
