"""Members of one shard as arrays, from its index or from the columns made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.array_types import Bools, Int64, UInt8, UInt32
from datapipe.index.members import member_kind
from datapipe.pack.writers.ustar import MAX_NAME

COMPARED = ("key", "source", "text_bytes", "ext", "offset", "size", "crc32")
"""Columns of an index that `columns/` holds too, apart from sizes of images."""


@dataclass(frozen=True, kw_only=True)
class MemberTable:
    """N samples of a shard with M members and I images, in the order of the index."""

    table: pa.Table  # with the columns `COMPARED`, `image_width` and `image_height`

    @cached_property
    def keys(self) -> list[str]:
        """Key of each sample."""
        return self.table["key"].to_pylist()  # type: ignore[no-any-return]

    @cached_property
    def sample(self) -> Int64:
        """Number of the sample of each member: int64 [M]."""
        counts = pc.list_value_length(self.table["ext"]).to_numpy()
        return np.repeat(np.arange(len(self.table), dtype=np.int64), counts)

    @cached_property
    def exts(self) -> list[str]:
        """Extension of each member."""
        return pc.list_flatten(self.table["ext"]).to_pylist()  # type: ignore[no-any-return]

    def name(self, number: int) -> str:
        """Return the name of a member, as datapipe writes it."""
        return f"{self.keys[int(self.sample[number])]}.{self.exts[number]}"

    def header_names(self, numbers: Int64) -> UInt8:
        """Return names of members as they stand in plain headers: uint8 [n, 100].

        Longer ones are "/" here, which no member is called.
        """
        keys = self.table["key"].combine_chunks().take(_plain(self.sample[numbers]))
        exts = pc.list_flatten(self.table["ext"]).combine_chunks().take(_plain(numbers))
        names = pc.cast(pc.binary_join_element_wise(keys, exts, "."), pa.binary())
        if pc.max(pc.binary_length(names)).as_py() > MAX_NAME:
            names = pc.if_else(pc.greater(pc.binary_length(names), MAX_NAME), b"/", names)
        ends = np.frombuffer(names.buffers()[1], np.int32)[: len(names) + 1]
        lengths = np.diff(ends)
        found = np.zeros((len(names), MAX_NAME), np.uint8)
        is_text = np.arange(MAX_NAME) < lengths[:, None]
        found[is_text] = np.frombuffer(names.buffers()[2], np.uint8)[ends[0] : ends[-1]]
        return found

    @cached_property
    def offset(self) -> Int64:
        """Position of the data of each member in the shard: int64 [M]."""
        found: Int64 = self._numbers("offset")
        return found

    @cached_property
    def size(self) -> Int64:
        """Bytes of each member: int64 [M]."""
        found: Int64 = self._numbers("size")
        return found

    @cached_property
    def crc32(self) -> UInt32:
        """Checksum of each member: uint32 [M]."""
        found: UInt32 = self._numbers("crc32")
        return found

    @cached_property
    def image(self) -> Int64:
        """Number of the image that each member is, -1 for other members: int64 [M]."""
        is_image: Bools = np.array([member_kind(ext) == "image" for ext in self.exts], np.bool_)
        return np.where(is_image, np.cumsum(is_image) - 1, -1)

    @cached_property
    def image_sizes(self) -> list[tuple[int, int]]:
        """Width and height of each image."""
        sides = (pc.list_flatten(self.table[f"image_{name}"]) for name in ("width", "height"))
        return list(zip(*(side.to_pylist() for side in sides), strict=True))

    def source(self, sample: int) -> str:
        """Return the raw input of a sample."""
        return self.table["source"][sample].as_py()  # type: ignore[no-any-return]

    def _numbers(self, name: str) -> Any:
        return pc.list_flatten(self.table[name]).to_numpy()


def table_of_columns(
    arrays: Mapping[str, Any], extensions: list[str], first: int, stop: int
) -> pa.Table:
    """Return samples `first` to `stop` of the arrays of `columns/` as a table of an index.

    Without copies of the values; orientations are not in the columns.
    """

    def listed(name: str, values: pa.Array) -> pa.Array:
        edges = np.asarray(arrays[f"sample_{name}"][first : stop + 1])
        edges = (edges - edges[0]).astype(np.int32)
        buffers = [None, pa.py_buffer(edges)]
        return pa.Array.from_buffers(
            pa.list_(values.type), len(edges) - 1, buffers, children=[values]
        )

    def strings(name: str) -> pa.Array:
        edges = np.asarray(arrays[f"sample_{name}"][first : stop + 1])
        text = np.asarray(arrays[f"{name}_bytes"][edges[0] : edges[-1]])
        buffers = [None, pa.py_buffer((edges - edges[0]).astype(np.int32)), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), len(edges) - 1, buffers)

    def span(kind: str) -> slice:
        edges = arrays[f"sample_{kind}"]
        return slice(int(edges[first]), int(edges[stop]))

    members, images = span("member"), span("image")
    names = pa.Array.from_buffers(
        pa.string(),
        len(extensions),
        [
            None,
            pa.py_buffer(np.cumsum([0, *map(len, map(str.encode, extensions))], dtype=np.int32)),
            pa.py_buffer("".join(extensions).encode()),
        ],
    )
    columns = {name: strings(name) for name in ("key", "source")}
    columns["text_bytes"] = _plain(arrays["text_bytes"][first:stop])
    columns["ext"] = listed("member", names.take(_plain(arrays["member_ext"][members])))
    for name in ("offset", "size", "crc32"):
        columns[name] = listed("member", _plain(arrays[f"member_{name}"][members]))
    for name in ("image_width", "image_height"):
        columns[name] = listed("image", _plain(arrays[name][images]))
    return pa.table(columns)


def _plain(values: Any) -> pa.Array:
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)]
    )
