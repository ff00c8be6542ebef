"""Ragged arrays: rows of different lengths in one array, with offsets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from datapipe.array_types import Int64, Integers


def edges(counts: Integers) -> Int64:
    """Return the offsets of rows with these lengths: int64 [n + 1]."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.add.accumulate(counts, out=offsets[1:])  # as np.cumsum, with less overhead
    return offsets


def owners(offsets: Int64) -> Int64:
    """Return the row of each item: int64 [items]. `offsets` are those of the rows."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def totals(values: Integers, offsets: Int64) -> Int64:
    """Add up the values of each row: int64 [n]. `offsets` are those of the rows, [n + 1]."""
    return np.diff(edges(values)[offsets])


def spans(offsets: Any, rows: Int64) -> tuple[Int64, Int64]:
    """Return where some rows begin, and how many items each has: int64 [n] each.

    `offsets` are int64 [N + 1], or values that find spans themselves.
    """
    find = getattr(offsets, "spans", None)
    if find is not None:
        found: tuple[Int64, Int64] = find(rows)
        return found
    starts = offsets[rows]
    return starts, offsets[rows + 1] - starts


def places(offsets: Any, rows: Int64) -> tuple[Int64, Int64]:
    """Return the indices of the items of some rows, row after row, and the rows' new offsets.

    Both are int64, [items] and [n + 1]. A row may come twice.
    """
    starts, counts = spans(offsets, rows)
    return ranges(starts, counts), edges(counts)


def ranges(starts: Int64, counts: Int64) -> Int64:
    """Return `counts[i]` consecutive numbers from each `starts[i]` on: int64 [total]."""
    offsets = edges(counts)
    return np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])


def grouped(values: Integers) -> Iterator[tuple[int, Int64]]:
    """Yield each of some values, ascending, with the indices that it is at: int64."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    bounds = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    ends = [0, *bounds.tolist(), len(values)] if len(values) else [0]
    for start, stop in itertools.pairwise(ends):
        yield int(ordered[start]), order[start:stop]


def indices_below(size: int, values: npt.ArrayLike) -> Int64:
    """Return indices as int64, of the shape of `values`; IndexError outside `0 ... size - 1`."""
    indices = np.asarray(values, np.int64)
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        wrong = indices.min() if indices.min() < 0 else indices.max()
        raise IndexError(f"{wrong} is not in 0 ... {size - 1}")
    return indices
