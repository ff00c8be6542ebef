"""Reads of single values out of columns that may be larger than memory."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from datapipe.array_types import Int64
from datapipe.index.files.block_checksums import LARGE
from datapipe.index.files.npy import mapped_from
from datapipe.index.files.read_at import read_at

Values = npt.NDArray[Any]


class ReadableColumn(Protocol):
    """Column that reads its own values, such as `CheckedColumn` and `MixtureColumn`."""

    def read(self, numbers: Int64, width: int = 1) -> Values:
        """Return `width` values from each number on: [n, width]."""
        ...


def gather(column: Values | ReadableColumn, numbers: Int64) -> Values:
    """Return `column[numbers]`, for a column that may be memory-mapped.

    Values at random are on as many pages. Through a mapping each of them costs a fault, counts as
    this process's memory, and waits for the disk alone. So large columns are read by position,
    and where that is slow, values are asked for before they are read.
    """
    return read_values(column, numbers)[:, 0]


def gather_counts(offsets: Values | ReadableColumn, numbers: Int64) -> Values:
    """Return `offsets[numbers + 1] - offsets[numbers]`, as `gather` reads them."""
    pairs = read_values(offsets, numbers, 2)
    counts: Values = pairs[:, 1] - pairs[:, 0]
    return counts


def read_values(column: Values | ReadableColumn, numbers: Int64, width: int = 1) -> Values:
    """Return `width` values from each number on, as `gather` reads them: [n, width]."""
    if not isinstance(column, np.ndarray):
        return column.read(numbers, width)
    if column.nbytes > LARGE and (mapped := mapped_from(column)) is not None:
        return _read(column, mapped, numbers, width)
    return take_values(column, numbers, width)


def take_values(column: Any, numbers: Int64, width: int = 1) -> Values:
    """Return `width` values from each number on, through a mapping: [n, width]."""
    values: Values = column[numbers]
    further = [column[numbers + more] for more in range(1, width)]
    return np.stack([values, *further], axis=1) if further else values[:, None]


def _read(column: Values, mapped: tuple[str, int], numbers: Int64, width: int) -> Values:
    """Read values from the file that a column is mapped from."""
    path, start = mapped
    size = width * column.itemsize
    # Neighbours share pages, and a disk likes an order.
    order = np.argsort(numbers, kind="stable")
    starts: list[int] = (start + column.itemsize * numbers[order]).tolist()
    parts = read_at(path, starts, size)
    values = np.empty((len(numbers), width), column.dtype)
    values[order] = np.frombuffer(b"".join(parts), column.dtype).reshape(-1, width)
    return values
