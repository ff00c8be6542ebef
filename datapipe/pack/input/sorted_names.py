"""File names in the order of their bytes, in little memory."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

_RUN = 1 << 17  # names that wait as strings before they are packed


class SortedNames:
    """Collection of file names, iterated in the order of their bytes."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._waiting: list[str] = []
        self._is_sorted = True
        self._runs: list[npt.NDArray[Any]] = []
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        self._waiting.append(name)
        self._is_sorted = False
        if len(self._waiting) >= _RUN:
            self._pack()

    def __len__(self) -> int:
        return len(self._waiting) + sum(map(len, self._runs))

    def __iter__(self) -> Iterator[str]:
        if self._runs:
            self._pack()
            return map(os.fsdecode, heapq.merge(*map(_items, self._runs)))
        if not self._is_sorted:
            # Text sorts as its bytes in UTF-8 do; names that are no text do not.
            plain = all(map(str.isascii, self._waiting))
            self._waiting.sort(key=None if plain else os.fsencode)
            self._is_sorted = True
        return iter(self._waiting)

    def _pack(self) -> None:
        if self._waiting:
            # Fixed width: no name holds the NUL that shorter ones are filled up with.
            self._runs.append(np.sort(np.array(list(map(os.fsencode, self._waiting)), np.bytes_)))
            self._waiting = []


def _items(run: npt.NDArray[Any]) -> Iterator[bytes]:
    for start in range(0, len(run), 1024):
        yield from run[start : start + 1024].tolist()
