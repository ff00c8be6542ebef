"""The columns that a `where` may name, for a stretch of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datapipe.errors import PlanError
from datapipe.index.columns import Columns, Int64

Bools = npt.NDArray[np.bool_]
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

    Args:
        columns: of the dataset.
        extra: further columns of integers, by name; each takes a slice of samples. A negative
            number means that the sample has none.
        start, stop: sample numbers.
    """

    def __init__(self, columns: Columns, extra: ExtraColumns, start: int, stop: int) -> None:
        self.start = start
        self.size = stop - start
        self._columns = columns
        self._extra = extra
        self._slice = slice(start, stop)
        self._numbers: dict[str, Numbers] = {}
        self._strings: dict[str, pa.Array] = {}

    def key(self, place: int) -> str:
        """Key of the sample at a place of the stretch."""
        return self._columns.key(self.start + place)

    def numbers(self, name: str) -> Numbers:
        """A column of numbers."""
        if name not in self._numbers:
            self._numbers[name] = self._read(name)
        return self._numbers[name]

    def strings(self, name: str) -> pa.Array:
        """A column of strings: large_string [n]."""
        if name not in self._strings:
            offsets = getattr(self._columns, f"sample_{name}")[self.start : self._slice.stop + 1]
            text = getattr(self._columns, f"{name}_bytes")[offsets[0] : offsets[-1]]
            buffers = [None, pa.py_buffer(offsets - offsets[0]), pa.py_buffer(text)]
            self._strings[name] = pa.Array.from_buffers(pa.large_string(), self.size, buffers)
        return self._strings[name]

    def _read(self, name: str) -> Numbers:
        match name:
            case "width" | "height":
                return self._of_first_image(name)
            case "pixels" | "aspect":
                width, height = self.numbers("width"), self.numbers("height")
                if name == "pixels":
                    return Numbers(values=width.values * height.values, known=width.known)
                ratio = width.values / np.maximum(height.values, 1)
                return Numbers(values=ratio, known=width.known)
            case "images":
                edges = self._columns.sample_image[self.start : self._slice.stop + 1]
                return self._all_known(np.diff(edges))
            case "text_bytes":
                return self._all_known(self._columns.text_bytes[self._slice])
            case "shard":
                samples = np.arange(self.start, self._slice.stop)
                shards = np.searchsorted(self._columns.shard_sample, samples, side="right") - 1
                return self._all_known(shards)
        values = np.asarray(self._extra[name](self._slice))
        if values.shape != (self.size,) or values.dtype.kind not in "iu":
            raise PlanError(
                f"column {name!r} gave {values.dtype} {list(values.shape)} for {self.size} "
                "samples; an extra column gives one integer a sample"
            )
        return Numbers(values=values.astype(np.int64), known=values >= 0)

    def _of_first_image(self, name: str) -> Numbers:
        edges: Int64 = np.asarray(self._columns.sample_image[self.start : self._slice.stop + 1])
        known = np.diff(edges) > 0
        sizes: list[npt.NDArray[Any]] = []
        for column in (self._columns.image_width, self._columns.image_height):
            values = np.zeros(self.size, np.int64)
            values[known] = column[edges[0] : edges[-1]][edges[:-1][known] - edges[0]]
            sizes.append(values)
        known &= (sizes[0] > 0) & (sizes[1] > 0)
        for column_name, values in zip(("width", "height"), sizes, strict=True):
            self._numbers[column_name] = Numbers(values=values, known=known)
        return self._numbers[name]

    def _all_known(self, values: npt.NDArray[Any]) -> Numbers:
        return Numbers(values=values.astype(np.int64), known=np.ones(self.size, np.bool_))
