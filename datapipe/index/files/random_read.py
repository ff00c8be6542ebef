"""Reads at many places of columns and files that may be larger than memory."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from datapipe.array_types import Int64

_AHEAD = 1024  # reads that are announced before they are made
_HANDED_OVER = 16  # reads that are yielded together: they are still in the processor's cache
_SLOW = 20e-6  # seconds a read, above which the disk is read and not the page cache
_CERTAIN = 4  # slow chunks in a row, since another process may have had the processor for one

Values = npt.NDArray[Any]


class ReadableColumn(Protocol):
    """Column that reads its own values, such as `CheckedColumn` and `MixtureColumn`."""

    def read(self, numbers: Int64, width: int = 1) -> Values:
        """Return `width` values from each number on: [n, width]."""


def gather(column: Values | ReadableColumn, numbers: Int64) -> Values:
    """Return `column[numbers]`, for a column that may be larger than memory.

    Values at random are on as many pages. Through a mapping each of them costs a fault, counts as
    this process's memory, and waits for the disk alone. So large columns read them by position
    (`CheckedColumn`).
    """
    return read_values(column, numbers)[:, 0]


def gather_counts(offsets: Values | ReadableColumn, numbers: Int64) -> Values:
    """Return `offsets[numbers + 1] - offsets[numbers]`, as `gather` reads them."""
    return np.diff(read_values(offsets, numbers, 2))[:, 0]


def read_values(column: Values | ReadableColumn, numbers: Int64, width: int = 1) -> Values:
    """Return `width` values from each number on, as `gather` reads them: [n, width]."""
    if not isinstance(column, np.ndarray):
        return column.read(numbers, width)
    return take_values(column, numbers, width)


def take_values(column: Any, numbers: Int64, width: int = 1) -> Values:
    """Return `width` values from each number on, through a mapping: [n, width]."""
    values: Values = column[numbers]
    further = [column[numbers + more] for more in range(1, width)]
    return np.stack([values, *further], axis=1) if further else values[:, None]


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
