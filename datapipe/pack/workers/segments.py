"""Memory that a worker and its parent map, in segments that are used in turn.

A worker fills a segment and tells its parent, which gives it back once it is written. Both are done
in the order of the segments, so a count of free ones is all that they share beside the memory.
"""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

from datapipe.workers.messages import Descriptor

SEGMENT = 4 << 20
SEGMENTS = 4
"""Bytes of a segment, and how many a worker has: enough to work on while others are written."""


class SharedSegments(NamedTuple):
    """Files of a worker's memory and of its count of free segments."""

    memory: Descriptor
    free: Descriptor


def shared_segments() -> SharedSegments:
    memory = os.memfd_create("datapipe-pack")
    os.ftruncate(memory, SEGMENT * SEGMENTS)
    free = os.eventfd(SEGMENTS, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
    return SharedSegments(Descriptor(memory), Descriptor(free))


class Segments:
    """One side of the memory, which takes or gives back one segment after the other."""

    def __init__(self, shared: SharedSegments) -> None:
        self._shared = shared
        self._memory = memoryview(mmap.mmap(shared.memory.number, SEGMENT * SEGMENTS))
        self._turn = 0

    def take(self) -> memoryview:
        """Wait for a free segment, and return it. For the worker."""
        os.eventfd_read(self._shared.free.number)
        return self._next()

    def next_part(self, size: int) -> memoryview:
        """Return the first bytes of the segment that was filled next. For the parent."""
        return self._next()[:size]

    def give_back(self) -> None:
        """Free the segment that was filled first. For the parent."""
        os.eventfd_write(self._shared.free.number, 1)

    def close(self) -> None:
        """Close the files; memory that is in use stays."""
        for descriptor in self._shared:
            os.close(descriptor.number)

    def _next(self) -> memoryview:
        start = self._turn * SEGMENT
        self._turn = (self._turn + 1) % SEGMENTS
        return self._memory[start : start + SEGMENT]
