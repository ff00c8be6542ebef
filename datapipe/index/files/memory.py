"""Memory of this process as one array, to read values of many arrays at once.

An access of each array would take longer than all else that is done for a batch. Whoever reads so
holds the arrays meanwhile, and checks what is read against their lengths. The array has no end that
could be read, so it must not be printed.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from datapipe.array_types import UInt8, UInt16, UInt32, UInt64

Memory = tuple[UInt64, UInt32, UInt16, UInt8]

START = 4096
"""First address of `memory_of`; nothing is below it."""

_END = 1 << 48  # of the addresses that Linux gives to programs: 47 bits on x86-64, 48 on ARM


@functools.cache
def memory_of(dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return all memory as values of a type: item i is at the address `START + i * itemsize`.

    Examples:
        >>> numbers = np.array([3, 5, 8])
        >>> place = (numbers.ctypes.data - START) // 8
        >>> memory_of(numbers.dtype)[place : place + 3].tolist()
        [3, 5, 8]
    """
    whole = (ctypes.c_uint8 * (_END - START)).from_address(START)
    return np.ctypeslib.as_array(whole).view(dtype)


@functools.cache
def memory() -> Memory:
    """Return `memory_of` uint64, uint32, uint16 and uint8, as `joined_kernel` takes it."""
    whole = (memory_of(np.dtype(kind)) for kind in (np.uint64, np.uint32, np.uint16, np.uint8))
    words, halves, quarters, bytes_ = whole
    return words, halves, quarters, bytes_
