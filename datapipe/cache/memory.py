"""Entries in memory: a fixed part that worker processes share, or those that a policy keeps."""

from __future__ import annotations

import logging
import mmap
import os
import threading
import weakref

import numpy as np

from datapipe.array_types import Bools, UInt8
from datapipe.cache.entries import checksum_mark
from datapipe.cache.layout import EntryLayout
from datapipe.cache.next_use import expected_hits
from datapipe.cache.tier import InPlace, Policy, Tier, TierRequest, Use, Uses
from datapipe.errors import DatapipeError
from datapipe.workers.messages import Descriptor

logger = logging.getLogger(__name__)

_LOOKED_AT = 1000  # samples, for the size of all


class SharedBytes:
    """Zeroed memory that processes share: an unnamed file, gone with the last of them.

    Pages are allocated when they are written to. DatapipeError if the system does not grant it.
    `received` is the file, in another process.
    """

    def __init__(self, size: int, received: Descriptor | None = None) -> None:
        try:
            self._file = received or Descriptor(os.memfd_create("datapipe-cache"))
            weakref.finalize(self, os.close, self._file.number).atexit = False
            length = max(size, 1)
            if received is None:
                os.ftruncate(self._file.number, length)
            self.bytes: UInt8 = np.frombuffer(mmap.mmap(self._file.number, length), np.uint8)[:size]
        except OSError as error:
            raise DatapipeError(
                f"{size:,} bytes of memory cannot be shared: {error.strerror}; give a smaller "
                "CacheSpec(memory=...)"
            ) from error

    def __reduce__(self) -> tuple[object, ...]:
        return SharedBytes, (len(self.bytes), self._file)


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


class EvictingTier(Tier):
    """Entries that come and go as a policy says, for the threads of one process.

    An entry that was returned stays valid while it is referred to, also after its eviction.
    """

    name = "memory"

    def __init__(self, policy: Policy, *, expected: float | None = None) -> None:
        self._policy = policy
        self.plans_ahead = policy.plans_ahead
        self.expected = expected
        self._entries: dict[int, UInt8] = {}
        self._lock = threading.Lock()

    def describe(self, form: str) -> str:
        return f"{self._policy.keeps} {form} in memory"

    def holds(self, uses: Uses) -> Bools:
        return np.array([sample in self._entries for sample in uses.samples.tolist()], bool)

    def get(self, use: Use) -> UInt8 | None:
        with self._lock:
            entry = self._entries.get(use.sample)
            if entry is not None:
                self._policy.use(use.sample, use.next)
                if use.sample not in self._policy:
                    del self._entries[use.sample]
            return entry

    def room(self, use: Use, size: int) -> UInt8 | None:
        with self._lock:
            kept = self._policy.would_keep(use.sample, size, use.next)
        return np.empty(size, np.uint8) if kept else None

    def put(self, use: Use, entry: UInt8) -> bool:
        with self._lock:
            kept, going = self._policy.offer(use.sample, len(entry), use.next)
            for other in going:
                del self._entries[other]
            self.evicted += len(going)
            if kept:
                self._entries[use.sample] = entry
            return kept


def memory_tier(request: TierRequest) -> Tier | None:
    """Make the tier that a policy of eviction asks for; without one, that of a fixed part."""
    if request.spec.memory is None:
        return None
    budget, samples = int(request.spec.memory), len(request.dataset)
    if request.policy is not None:
        spread = np.linspace(0, samples - 1, min(samples, _LOOKED_AT)).astype(np.int64)
        mean = float(request.sizes(spread).mean())
        part = min(1.0, budget / max(mean * samples, 1.0))
        expected = expected_hits(request.policy, round(part, 3), request.ranks)
        return EvictingTier(request.policy(budget), expected=expected)
    before = request.covered or 0
    layout = EntryLayout(samples, request.sizes, budget, first=before)
    if not layout.kept and not before:
        logger.warning(
            "the cache keeps nothing in memory: no sample of %s fits into %s bytes; give more, "
            "such as '8GB'",
            *(request.dataset.title, f"{budget:,}"),
        )
    return SharedMemoryTier(layout)
