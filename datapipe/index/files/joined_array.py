"""Arrays of several datasets as one, without copying them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from datapipe.array_types import Int64
from datapipe.index.files.memory import START, memory_of

Values = npt.NDArray[Any]


class JoinedArray:
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

    Examples:
        >>> parts = [np.array([1, 2]), np.array([3])]
        >>> joined = JoinedArray([lambda part=part: part for part in parts], np.array([0, 2, 3]))
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
    ) -> None:
        self._parts = parts
        self._edges = edges
        self._shifts = shifts
        self._table: Values | None = None
        if codes is not None:
            self._table = np.zeros((len(codes), max(map(len, codes), default=0)), dtype)
            for row, numbers in zip(self._table, codes, strict=True):
                row[: len(numbers)] = numbers
        self._last = max(0, int(np.searchsorted(edges, edges[-1])) - 1)
        self.dtype = np.dtype(dtype)
        self._arrays: list[Any] = [None] * len(parts)
        # Of plain arrays, whose values are read by it; 0 of others.
        self._addresses = np.zeros(len(parts), np.int64)

    def __len__(self) -> int:
        """Return the number of values; offsets have one more."""
        return int(self._edges[-1]) + (self._shifts is not None)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self.gather(np.arange(start, stop, step, dtype=np.int64), _take)
        numbers = np.asarray(index)
        if numbers.dtype == bool:
            if numbers.shape != (len(self),):
                raise IndexError(
                    f"a mask of shape {numbers.shape} is not one of {len(self)} values"
                )
            numbers = np.flatnonzero(numbers)
        numbers = numbers.astype(np.int64)
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        found = self.gather(numbers.reshape(-1), _take).reshape(numbers.shape)
        return found if numbers.ndim else found[()]

    def gather(self, numbers: Int64, take: Callable[[Any, Int64], Values]) -> Values:
        """Return values at random: [n], read from each part by `take`.

        Raises:
            IndexError: a number is not below the length.
        """
        parts = self._holders(numbers)
        addresses = self._addresses[parts]
        if not addresses.all() or not len(numbers):
            return self._gather_each(numbers, take)
        found: Values = memory_of(self.dtype)[
            (addresses - START) // self.dtype.itemsize + numbers - self._edges[parts]
        ]
        if self._table is not None:
            found = self._table[parts, found]
        return found if self._shifts is None else found + self._shifts[parts]

    def addresses(self, parts: Int64) -> Int64:
        """Return the address of each of some parts, which are asked for; 0 of no plain array."""
        found: Int64 = self._addresses[parts]
        if not found.all():
            for part in np.unique(parts).tolist():
                self._array(part)
            found = self._addresses[parts]
        return found

    def _gather_each(self, numbers: Int64, take: Callable[[Any, Int64], Values]) -> Values:
        found = np.empty(len(numbers), self.dtype)
        for part, chosen, own in self.by_part(numbers):
            values = take(self._array(part), own)
            if self._table is not None:
                values = self._table[part][values]
            found[chosen] = values if self._shifts is None else values + self._shifts[part]
        return found

    def _array(self, part: int) -> Any:
        array = self._arrays[part]
        if array is None:
            array = self._arrays[part] = self._parts[part]()
            if isinstance(array, np.ndarray) and array.flags.c_contiguous and array.size:
                assert array.dtype == self.dtype
                if array.ctypes.data % self.dtype.itemsize == 0:
                    self._addresses[part] = array.ctypes.data
        return array

    def _holders(self, numbers: Int64) -> Int64:
        """Return the part that holds each number.

        Raises:
            IndexError: a number is not below the length.
        """
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(self)):
            wrong = numbers.min() if numbers.min() < 0 else numbers.max()
            raise IndexError(f"{wrong} is not in 0 ... {len(self) - 1}")
        found: Int64 = np.searchsorted(self._edges[:-1], numbers, side="right") - 1
        if self._shifts is not None and len(self._edges) > 1:
            # The end of all offsets is that of the last part that has any.
            found = np.minimum(found, self._last)
        return found

    def gather_counts(self, numbers: Int64, take: Callable[[Any, Int64], Values]) -> Values:
        """Return differences of offsets and those that follow: [n], read from each part by `take`.

        Raises:
            IndexError: a number is not below the number of counts.
        """
        found = np.empty(len(numbers), self.dtype)
        for part, chosen, own in split_by_part(self._edges, numbers):
            found[chosen] = take(self._array(part), own)
        return found

    def by_part(self, numbers: Int64) -> list[tuple[int, Any, Int64]]:
        """Return, for each part with some of the numbers, where they are, and their own indices."""
        return split_by_part(self._edges, numbers, offsets=self._shifts is not None)


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
