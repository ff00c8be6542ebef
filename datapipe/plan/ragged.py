"""Ragged arrays: rows of different lengths in one array, with offsets."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def edges(counts: npt.NDArray[np.integer]) -> Int64:
    """Offsets of rows with these lengths: int64 [n + 1]."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.add.accumulate(counts, out=offsets[1:])  # as np.cumsum, without its way there
    return offsets


def places(offsets: npt.NDArray[np.int64], rows: Int64) -> tuple[Int64, Int64]:
    """Where the items of some rows stand, row after row, and the offsets of the rows there.

    Args:
        offsets: int64 [N + 1]; row i has items `offsets[i]` to `offsets[i + 1]`.
        rows: int64 [n]; a row may come twice.

    Returns:
        (int64 [items], int64 [n + 1]).
    """
    starts = offsets[rows]
    counts = offsets[rows + 1] - starts
    return ranges(starts, counts), edges(counts)


def ranges(starts: Int64, counts: Int64) -> Int64:
    """The numbers from each start on, so many of each, one run after the other: int64 [total]."""
    here = edges(counts)
    return np.repeat(starts - here[:-1], counts) + np.arange(here[-1])
