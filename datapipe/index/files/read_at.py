"""Reads of one size at many offsets of a file, which may be larger than memory."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Sequence

_AHEAD = 1024  # reads that are announced before they are made
_HANDED_OVER = 16  # reads that are yielded together: they are still in the processor's cache
_SLOW = 20e-6  # seconds a read, above which the disk is read and not the page cache
_CERTAIN = 4  # slow chunks in a row, since another process may have had the processor for one


def read_at(path: str | os.PathLike[str], offsets: Sequence[int], size: int) -> Iterator[bytes]:
    """Yield `size` bytes from each offset of a file, fewer at its end; rising offsets are faster.

    Once reads are slow, the next 1,024 are always announced to the kernel, so that a disk serves
    them together while the caller uses those before. Therefore give all offsets in one call.
    OSError if the file cannot be read.
    """
    slow = announced = 0
    with io.FileIO(path) as file:
        descriptor = file.fileno()
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        for start in range(0, len(offsets), _HANDED_OVER):
            chunk = offsets[start : start + _HANDED_OVER]
            if slow == _CERTAIN:
                for offset in offsets[max(announced, start) : start + _AHEAD]:
                    os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)
                announced = start + _AHEAD
            began = time.perf_counter()
            read = [os.pread(descriptor, size, offset) for offset in chunk]
            if slow < _CERTAIN:
                slow = slow + 1 if time.perf_counter() - began > _SLOW * len(chunk) else 0
            yield from read
