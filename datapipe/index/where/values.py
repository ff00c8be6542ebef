"""The columns that a `where` may name, for a range of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from keyword import iskeyword
from typing import Any
from unicodedata import normalize

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datapipe.index.columns import DTYPES, Columns

ExtraColumns = Mapping[str, Callable[[slice], npt.NDArray[Any] | pa.Array]]
"""Columns by name, each a function of a slice of samples.

Fields of records are arrays of Arrow; all else are integers; a negative one stands for none.
"""

_OF_IMAGES = ("width", "height", "pixels", "aspect")
NAMES = (*_OF_IMAGES, "images", "text_bytes", "shard", "key", "source")
NEED_TEXT = ("text_tokens", "label_tokens", "tokens", "placeholders")


def is_field(name: str) -> bool:
    """Return whether a name in a `where` is that of a field of the samples' records."""
    return name.partition(".")[0] not in (*NAMES, *NEED_TEXT)


def written_field(name: str) -> str:
    """Return how a `where` names a field of the samples' records.

    Examples:
        >>> written_field("meta.score"), written_field("width"), written_field("a b")
        ('meta.score', "field('width')", "field('a b')")
    """
    words = name.split(".")
    plain = all(word.isidentifier() and not iskeyword(word) for word in words)
    # Python's parser reads some letters as others that look alike.
    plain = plain and is_field(name) and normalize("NFKC", name) == name
    return name if plain else f"field({name!r})"


class Span:
    """Columns of the samples `start` to `stop`, each read when it is first asked for."""

    def __init__(self, columns: Columns, extra: ExtraColumns, start: int, stop: int) -> None:
        self.slice = slice(start, stop)
        self.size = stop - start
        self.names = {*NAMES, *extra}
        self.column = cache(self._read)
        self._columns = columns
        self._extra = extra

    def _read(self, name: str) -> pa.Array:
        """Return one of `names`: bool, large_string, int64 or double [n], null where missing."""
        columns = self._columns
        if name in ("key", "source"):
            return columns.strings(name, self.slice.start, self.slice.stop)
        if name in self._extra:
            given = self._extra[name](self.slice)
            if isinstance(given, pa.Array):
                return given
            values = np.asarray(given)
            assert values.shape == (self.size,), name
            assert values.dtype.kind in "iu", name
            return pa.array(values.astype(np.int64), mask=values < 0)
        if name == "shard":
            return pa.array(columns.shards(np.arange(self.slice.start, self.slice.stop)))
        if name == "text_bytes":
            return pa.array(columns.text_bytes[self.slice])
        edges = np.asarray(columns.sample_image[self.slice.start : self.slice.stop + 1])
        if name == "images":
            return pa.array(np.diff(edges))
        known = np.diff(edges) > 0
        firsts = edges[:-1][known] - edges[0]
        width, height = np.zeros((2, self.size), np.int64)
        width[known] = columns.image_width[edges[0] : edges[-1]][firsts]
        height[known] = columns.image_height[edges[0] : edges[-1]][firsts]
        aspect = width / np.maximum(height, 1)
        of_images = dict(zip(_OF_IMAGES, (width, height, width * height, aspect), strict=True))
        return pa.array(of_images[name], mask=(width <= 0) | (height <= 0))


def no_samples() -> Span:
    """Return all columns of no samples, by which an expression is checked."""
    empty: Any = {name: np.zeros(1, dtype) for name, dtype in DTYPES.items()}
    columns = Columns(extensions=(), index_bytes=(), shard_sample=np.zeros(1, np.int64), **empty)
    return Span(columns, dict.fromkeys(NEED_TEXT, lambda _: np.zeros(0, np.int64)), 0, 0)
