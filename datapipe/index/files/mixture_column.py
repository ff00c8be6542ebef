"""Arrays of several datasets as one, without copying them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from datapipe.array_types import Int64
from datapipe.index.files.block_checksums import CheckedColumn
from datapipe.index.files.memory import memory
from datapipe.late_module import LateModule

Values = npt.NDArray[Any]

KERNEL = LateModule("datapipe.index.files.joined_kernel", after=1 << 16)
"""Kernel that reads values at random, of the whole process. Work is counted in values."""

IN_SHARDS, CLOSED, OPEN = 0, 1, 2
"""A dataset of a mixture is in shards, or in arrays, or in arrays that are mapped."""

_NO_SHIFTS = np.zeros(0, np.int64)
_NO_CODES = np.zeros((0, 0), np.int64)


def address_of(array: Any) -> int:
    """Return the address of an array's values; 0 if they are not known by it."""
    values = array.values if isinstance(array, CheckedColumn) else array
    if not isinstance(values, np.ndarray) or not values.flags.c_contiguous or not values.size:
        return 0
    address: int = values.ctypes.data
    return 0 if address % values.itemsize else address


def flags_of(array: Any) -> int:
    """Return the address of the flags of blocks that were compared; 0 if all were."""
    return array.compared.ctypes.data if isinstance(array, CheckedColumn) else 0


class MixtureColumn:
    """Array whose parts are arrays of several datasets, one behind the other.

    Indexing it with an integer, a slice or an array of integers returns plain values. A part is
    asked for when it is first indexed.

    Args:
        parts: return the array of each dataset.
        edges: int64 [parts + 1], index of the first value of each part, and the length.
        dtype: of the values.
        shifts: int64 [parts], added to the values of each part; None for nothing. Offsets become
            offsets into another joined array by it. A part of offsets has one value more than
            `edges` say: the first of the next part stands for it.
        codes: of parts whose values are numbers of names, the new number of each old one; None for
            plain values.
        table: memory for the table of the arrays, as `joined_kernel` has it: int64 [2, parts] of
            zeros; None for its own.

    Attributes:
        dtype: of the values.
        codes: int64 [parts, ...]; [0, 0] for plain values.

    Examples:
        >>> parts = [np.array([1, 2]), np.array([3])]
        >>> joined = MixtureColumn([lambda part=part: part for part in parts], np.array([0, 2, 3]))
        >>> joined[np.array([2, 0])].tolist()
        [3, 1]
    """

    def __init__(
        self,
        parts: Sequence[Callable[[], Any]],
        edges: Int64,
        dtype: npt.DTypeLike = np.int64,
        *,
        shifts: Int64 | None = None,
        codes: Sequence[Values] | None = None,
        table: Int64 | None = None,
    ) -> None:
        self._parts = parts
        self._edges = edges
        self._shifts = _NO_SHIFTS if shifts is None else shifts
        self._offsets = shifts is not None
        self.codes = _NO_CODES
        if codes is not None:
            most = max(map(len, codes), default=0)
            self.codes = np.array([np.resize(numbers, most) for numbers in codes], np.int64)
        self._end = int(edges[-1])
        # Of empty parts at the end, none is asked.
        self._last = max(0, int(np.searchsorted(edges, self._end)) - 1)
        self.dtype = np.dtype(dtype)
        self._arrays: list[Any] = [None] * len(parts)
        self._table = np.zeros((2, len(parts)), np.int64) if table is None else table
        self._by_position = False

    def __len__(self) -> int:
        """Return the number of values; offsets have one more."""
        return self._end + self._offsets

    def __getitem__(self, index: Any) -> Any:
        if type(index) is np.ndarray and index.dtype == np.int64 and index.ndim == 1:
            found = self._read(index)
            if found is not None:
                return found
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self._gather_each(np.arange(start, stop, step, dtype=np.int64), _take)
        numbers = np.asarray(index)
        if numbers.dtype == bool:
            if numbers.shape != (len(self),):
                raise IndexError(
                    f"a mask of shape {numbers.shape} is not one of {len(self)} values"
                )
            numbers = np.flatnonzero(numbers)
        numbers = numbers.astype(np.int64)
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        found = self._gather_each(numbers.reshape(-1), _take).reshape(numbers.shape)
        return found if numbers.ndim else found[()]

    def gather(self, numbers: Int64, take: Callable[[Any, Int64], Values]) -> Values:
        """Return values at random: [n], read from each part by `take`.

        Raises:
            IndexError: a number is not below the length.
        """
        found = None if self._by_position else self._read(numbers)
        return self._gather_each(numbers, take) if found is None else found

    def spans(self, numbers: Int64) -> tuple[Int64, Int64]:
        """Return offsets, and by how much those that follow are larger: int64 [n] each."""
        found = np.empty((2, len(numbers)), np.int64)
        if KERNEL.module is None:
            KERNEL.count(2 * len(numbers))
        elif KERNEL.module.read_spans(
            *(numbers, self._edges, self._table, self._shifts, memory(), found)
        ):
            return found[0], found[1]
        starts = self._gather_each(numbers, _take)
        return starts, self._gather_each(numbers + 1, _take) - starts

    def gather_counts(self, numbers: Int64, take: Callable[[Any, Int64], Values]) -> Values:
        """Return differences of offsets and those that follow: [n], read from each part by `take`.

        Raises:
            IndexError: a number is not below the number of counts.
        """
        if not self._by_position:
            return self.spans(numbers)[1]
        found = np.empty(len(numbers), self.dtype)
        for part, chosen, own in split_by_part(self._edges, numbers):
            found[chosen] = take(self.open(part), own)
        return found

    def _read(self, numbers: Int64) -> Values | None:
        """Return values by their addresses; None if some are out of range, or not known so."""
        if KERNEL.module is None:
            KERNEL.count(len(numbers))
            return None
        found = np.empty(len(numbers), np.int64)
        there = KERNEL.module.read(
            *(numbers, self._edges, len(self), self._last, self._table, self.dtype.itemsize),
            *(self._shifts, self.codes, memory(), found),
        )
        return found.astype(self.dtype, copy=False) if there else None

    def _gather_each(self, numbers: Int64, take: Callable[[Any, Int64], Values]) -> Values:
        found = np.empty(len(numbers), self.dtype)
        for part, chosen, own in self.by_part(numbers):
            values = take(self.open(part), own)
            if len(self.codes):
                values = self.codes[part][values]
            found[chosen] = values + self._shifts[part] if self._offsets else values
        return found

    def open(self, part: int) -> Any:
        """Return the array of a part, which is asked for once."""
        array = self._arrays[part]
        if array is None:
            array = self._arrays[part] = self._parts[part]()
            assert array.dtype == self.dtype
            self._by_position |= isinstance(array, CheckedColumn) and array.by_position
            self._table[1, part] = flags_of(array)
            self._table[0, part] = address_of(array)  # last: who finds it reads
        return array

    def by_part(self, numbers: Int64) -> list[tuple[int, Any, Int64]]:
        """Return, for each part with some of the numbers, where they are, and their own indices."""
        return split_by_part(self._edges, numbers, offsets=self._offsets)


def split_by_part(
    edges: Int64, numbers: Int64, *, offsets: bool = False
) -> list[tuple[int, Any, Int64]]:
    """Split numbers by the part that holds each.

    Args:
        edges: int64 [parts + 1].
        numbers: int64 [n], below `edges[-1]`; with `offsets` up to it.

    Returns:
        For each part with some of them, in order: its number, the places of its numbers (an index),
        and the numbers less the part's first.

    Raises:
        IndexError: a number is out of range.
    """
    if not len(numbers):
        return []
    least, most = int(numbers.min()), int(numbers.max())
    end = int(edges[-1])
    if least < 0 or most > end or (most == end and not offsets):
        raise IndexError(f"{least if least < 0 else most} is not in 0 ... {end - 1 + offsets}")
    last = int(np.searchsorted(edges, end))  # of empty parts at the end, none is asked
    first = min(int(np.searchsorted(edges, least, side="right")), last) - 1
    if most < edges[first + 1] or first + 1 == last:  # all in one, as in most small batches
        return [(first, slice(None), numbers - edges[first])]
    parts = np.minimum(np.searchsorted(edges, numbers, side="right"), last) - 1
    order = np.argsort(parts, kind="stable")
    held, starts = np.unique(parts[order], return_index=True)
    return [
        (part, chosen, numbers[chosen] - edges[part])
        for part, chosen in zip(held.tolist(), np.split(order, starts[1:]), strict=True)
    ]


def _take(part: Any, numbers: Int64) -> Values:
    values: Values = part[numbers]
    return values
