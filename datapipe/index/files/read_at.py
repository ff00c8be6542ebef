"""Reads of one size at many offsets of a file, which may be larger than memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

_AT_ONCE = 1024  # reads
_HANDED_OVER = 16  # reads that are yielded together: they are still in the processor's cache
_SLOW = 20e-6  # seconds a read, above which the disk is read and not the page cache


def read_at(path: str | os.PathLike[str], offsets: Sequence[int], size: int) -> Iterator[bytes]:
    """Yield `size` bytes from each offset of a file, fewer at its end; rising offsets are faster.

    Where reads are slow, 1,024 of them are announced to the kernel before the first is made, so
    that a disk serves them together. OSError if the file cannot be read.
    """
    slow = False
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        for first in range(0, len(offsets), _AT_ONCE):
            chunk = offsets[first : first + _AT_ONCE]
            if slow:
                for offset in chunk:
                    os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)
            spent = 0.0
            for start in range(0, len(chunk), _HANDED_OVER):
                began = time.perf_counter()
                read = [
                    os.pread(descriptor, size, at) for at in chunk[start : start + _HANDED_OVER]
                ]
                spent += time.perf_counter() - began
                yield from read
            slow = slow or spent > _SLOW * len(chunk)
    finally:
        os.close(descriptor)
