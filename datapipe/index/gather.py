"""Values of some samples out of columns that may be larger than memory."""

from __future__ import annotations

import mmap
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

_LARGE = 256 << 20  # bytes of a column; smaller ones may stay in memory whole
_AT_ONCE = 512  # values; the kernel maps up to 64 KiB around each

Array = TypeVar("Array", bound=npt.NDArray[Any])


def gather(column: Array, numbers: npt.NDArray[np.int64]) -> Array:
    """`column[numbers]`, for a column that may be memory-mapped.

    Every page that is touched counts as this process's memory, and values at random lie on as many
    pages. So those of a large column are given back as it goes; the file stays in the page cache.
    """
    mapping = _mapping(column)
    if column.nbytes <= _LARGE or mapping is None:
        return column[numbers]  # type: ignore[return-value]
    values = np.empty(len(numbers), column.dtype)
    # Neighbours share pages.
    order = np.argsort(numbers, kind="stable")
    for start in range(0, len(order), _AT_ONCE):
        chosen = order[start : start + _AT_ONCE]
        values[chosen] = column[numbers[chosen]]
        mapping.madvise(mmap.MADV_DONTNEED)
    return values  # type: ignore[return-value]


def _mapping(column: npt.NDArray[Any]) -> mmap.mmap | None:
    base: Any = column
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None
