"""The columns that a `where` may name, for a range of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datapipe.array_types import Bools, Int64
from datapipe.errors import PlanError
from datapipe.index.columns import Columns

ExtraColumns = Mapping[str, Callable[[slice], npt.NDArray[Any]]]


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Numbers of some samples, or one for all.

    Attributes:
        values: int64 or float64 [n] or [].
        known: bool [n] or []; false where a sample has no such number. Its value means nothing.
    """

    values: npt.NDArray[Any]
    known: Bools


class Span:
    """Columns of the samples `start` to `stop`, each read when it is first asked for.

    `extra` holds further columns of integers by name, each a function of a slice of samples; a
    negative number means that the sample has none.
    """

    def __init__(self, columns: Columns, extra: ExtraColumns, start: int, stop: int) -> None:
        self.start = start
        self.size = stop - start
        self._columns = columns
        self._extra = extra
        self._slice = slice(start, stop)
        self._numbers: dict[str, Numbers] = {}
        self._strings: dict[str, pa.Array] = {}

    def key(self, row: int) -> str:
        """Return the key of the sample `start + row`."""
        return self._columns.key(self.start + row)

    def numbers(self, name: str) -> Numbers:
        """Return a column of numbers."""
        if name not in self._numbers:
            self._numbers[name] = self._read(name)
        return self._numbers[name]

    def strings(self, name: str) -> pa.Array:
        """Return a column of strings: large_string [n]."""
        if name not in self._strings:
            self._strings[name] = self._columns.strings(name, self.start, self._slice.stop)
        return self._strings[name]

    def _read(self, name: str) -> Numbers:
        values: npt.NDArray[Any]
        match name:
            case "width" | "height" | "pixels" | "aspect":
                width, height, known = self._first_image
                if name == "pixels":
                    values = width * height
                elif name == "aspect":
                    values = width / np.maximum(height, 1)
                else:
                    values = width if name == "width" else height
                return Numbers(values=values, known=known)
            case "images":
                values = np.diff(self._columns.sample_image[self.start : self._slice.stop + 1])
            case "text_bytes":
                values = self._columns.text_bytes[self._slice]
            case "shard":
                values = self._columns.shards(np.arange(self.start, self._slice.stop))
            case _:
                values = np.asarray(self._extra[name](self._slice))
                if values.shape != (self.size,) or values.dtype.kind not in "iu":
                    raise PlanError(
                        f"column {name!r} gave {values.dtype} {list(values.shape)} for {self.size} "
                        "samples; an extra column gives one integer a sample"
                    )
                return Numbers(values=values.astype(np.int64), known=values >= 0)
        return Numbers(values=values.astype(np.int64), known=np.ones(self.size, np.bool_))

    @cached_property
    def _first_image(self) -> tuple[Int64, Int64, Bools]:
        """Width and height of the first image of each sample, and whether it has one."""
        edges: Int64 = np.asarray(self._columns.sample_image[self.start : self._slice.stop + 1])
        known = np.diff(edges) > 0
        width, height = np.zeros((2, self.size), np.int64)
        firsts = edges[:-1][known] - edges[0]
        width[known] = self._columns.image_width[edges[0] : edges[-1]][firsts]
        height[known] = self._columns.image_height[edges[0] : edges[-1]][firsts]
        return width, height, known & (width > 0) & (height > 0)
