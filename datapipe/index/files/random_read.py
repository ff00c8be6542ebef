"""Reads of single values out of columns that may be larger than memory."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from datapipe.array_types import Int64

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
