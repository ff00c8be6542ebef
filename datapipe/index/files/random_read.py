"""Reads of single values out of columns that may be larger than memory."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from datapipe.array_types import Int64
from datapipe.index.files.block_checksums import LARGE, CheckedColumn
from datapipe.index.files.mixture_column import MixtureColumn
from datapipe.index.files.read_at import read_at

Values = npt.NDArray[Any]


def gather(column: Any, numbers: Int64) -> Values:
    """Return `column[numbers]`, for a column that may be memory-mapped.

    Values at random are on as many pages. Through a mapping each of them costs a fault, counts as
    this process's memory, and waits for the disk alone. So large columns are read by position,
    and where that is slow, values are asked for before they are read.
    """
    if isinstance(column, MixtureColumn):
        return column.gather(numbers, gather)
    if isinstance(column, CheckedColumn):
        if column.by_position:
            checked: Values = column.read(numbers)[:, 0]
            return checked
        column.compare(numbers)
        column = column.values
    mapped = _file(column)
    values: Values = column[numbers] if mapped is None else _read(column, mapped, numbers, 1)[:, 0]
    return values


def gather_counts(offsets: Any, numbers: Int64) -> Values:
    """Return `offsets[numbers + 1] - offsets[numbers]`, as `gather` reads them."""
    if isinstance(offsets, MixtureColumn):
        return offsets.gather_counts(numbers, gather_counts)
    if isinstance(offsets, CheckedColumn):
        if offsets.by_position:
            ends = offsets.read(numbers, 2)
            checked: Values = ends[:, 1] - ends[:, 0]
            return checked
        offsets.compare(numbers, width=2)
        offsets = offsets.values
    mapped = _file(offsets)
    if mapped is None:
        counts: Values = offsets[numbers + 1] - offsets[numbers]
    else:
        pairs = _read(offsets, mapped, numbers, 2)
        counts = pairs[:, 1] - pairs[:, 0]
    return counts


def _read(column: Values, mapped: tuple[str, int], numbers: Int64, width: int) -> Values:
    """Read `width` values from each number on: [n, width]."""
    path, start = mapped
    size = width * column.itemsize
    # Neighbours share pages, and a disk likes an order.
    order = np.argsort(numbers, kind="stable")
    starts: list[int] = (start + column.itemsize * numbers[order]).tolist()
    parts = read_at(path, starts, size)
    values = np.empty((len(numbers), width), column.dtype)
    values[order] = np.frombuffer(b"".join(parts), column.dtype).reshape(-1, width)
    return values


def _file(column: Values) -> tuple[str, int] | None:
    """Return the file that a large column is mapped from, whole, and the offset of its values."""
    if column.nbytes <= LARGE:
        return None
    base: Any = column
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    if not isinstance(base, np.memmap) or base.filename is None or len(base) != len(column):
        return None
    return os.fspath(base.filename), base.offset
