"""Members of one shard as arrays, from its index or from the columns made of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.array_types import Int64, UInt8, UInt32
from datapipe.errors import IndexMismatch, StoreError
from datapipe.index.columns import COLUMNS, Columns
from datapipe.index.members import member_kind
from datapipe.index.parquet import parse_index, to_table
from datapipe.index.rows import ImageSize, Row, Rows
from datapipe.inspect.findings import Finding
from datapipe.inspect.located import UNKNOWN, DatasetFiles
from datapipe.inspect.sources import read_failure
from datapipe.pack.writers.ustar import MAX_NAME
from datapipe.report.table import counted

UNCHECKED = "cannot be checked"
"""In the problem of an index whose shard no other checksum vouches for."""

ONLY_INDEX = "nothing else says which samples of its shard are in the view; make the view again"
"""End of the problem of an index that cannot be made from its shard."""


class MemberTable:
    """N samples of a shard with M members and I images, in the order of the index.

    Of each member, [M]: the number of its `sample`, `offset` of its data in the shard and `size` in
    bytes, all int64, and its checksum `crc32`, uint32.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table  # of the schema of an index
        counts = pc.list_value_length(table["ext"]).to_numpy()
        self.sample: Int64 = np.repeat(np.arange(len(table), dtype=np.int64), counts)
        self.offset: Int64 = self._values("offset").to_numpy()
        self.size: Int64 = self._values("size").to_numpy()
        self.crc32: UInt32 = self._values("crc32").to_numpy()

    @cached_property
    def keys(self) -> list[str]:
        return self.table["key"].to_pylist()  # type: ignore[no-any-return]

    @cached_property
    def exts(self) -> list[str]:
        return self._values("ext").to_pylist()  # type: ignore[no-any-return]

    def name(self, number: int) -> str:
        """Return the name of a member, as datapipe writes it."""
        return f"{self.keys[int(self.sample[number])]}.{self.exts[number]}"

    @cached_property
    def header_names(self) -> UInt8:
        """Names of the members as in plain headers: uint8 [M, 100].

        Longer ones are "/" here, which no member is called.
        """
        # Not by `pa.array`, which imports pandas.
        buffers = [None, pa.py_buffer(self.sample)]
        samples = pa.Array.from_buffers(pa.int64(), len(self.sample), buffers)
        keys = self.table["key"].combine_chunks().take(samples)
        names = pc.binary_join_element_wise(keys, self._values("ext"), ".")
        names = pc.if_else(pc.greater(pc.binary_length(names), MAX_NAME), "/", names)
        padded = pc.ascii_rpad(names, MAX_NAME, padding="\0")
        return np.frombuffer(padded.buffers()[2], np.uint8).reshape(-1, MAX_NAME)

    @cached_property
    def by_offset(self) -> Int64:
        """Numbers of the members by their position in the shard: int64 [M]."""
        return np.argsort(self.offset, kind="stable")

    @cached_property
    def image_sizes(self) -> dict[int, tuple[int, int]]:
        """Width and height of the members that are images, by number, as far as they are stated."""
        images = [n for n, ext in enumerate(self.exts) if member_kind(ext) == "image"]
        sides = (pc.list_flatten(self.table[f"image_{name}"]) for name in ("width", "height"))
        sizes = zip(*(side.to_pylist() for side in sides), strict=True)
        return dict(zip(images, sizes, strict=False))

    def source(self, sample: int) -> str:
        """Return the raw input of a sample."""
        return self.table["source"][sample].as_py()  # type: ignore[no-any-return]

    def _values(self, name: str) -> pa.Array:
        return pc.list_flatten(self.table[name]).combine_chunks()


def _rows_of_columns(columns: Columns, first: int, stop: int) -> Iterator[Row]:
    """Yield samples `first` to `stop` as rows; the columns do not hold orientations."""
    samples, edges = np.arange(first, stop), columns.sample_member[first : stop + 1]
    members = columns.members_at(np.arange(edges[0], edges[-1]))
    widths, heights, images = columns.image_sides(samples)
    sizes = list(map(ImageSize, widths.tolist(), heights.tolist()))
    of_each = columns.keys(samples), columns.sources(samples), columns.text_bytes[first:stop]
    spans = pairwise((edges - edges[0]).tolist()), pairwise(images.tolist())
    for key, source, text_bytes, (a, b), (c, d) in zip(*of_each, *spans, strict=True):
        yield Row(key, members[a:b], sizes[c:d], int(text_bytes), source)


def read_members(located: DatasetFiles, number: int) -> tuple[MemberTable | None, list[Finding]]:
    """Return the members of a shard from its index, or from the columns if that is damaged.

    None if nothing says which bytes the shard should hold. Index and columns are compared if both
    are whole. An index without a manifest is taken as it is.
    """
    entry, columns, members, problem = located.entries[number], located.columns, None, ""
    if not entry.index:
        return None, []
    try:
        content = located.index.read(entry.index)
        if content is None:
            problem = "is missing"
        else:
            table = parse_index(content, entry.index, sha256=entry.index_sha256 or None)
            members = MemberTable(table)
            if entry.samples not in (UNKNOWN, len(table)):
                problem = (
                    f"has {counted(len(table), 'sample')}, the manifest says {entry.samples:,}"
                )
    except IndexMismatch as error:
        problem = str(error).removeprefix(entry.index).partition(";")[0].lstrip(": ")
    except (OSError, StoreError) as error:
        problem = read_failure(error)
    found = []
    if columns is not None:
        first, stop = columns.shard_sample[number : number + 2].tolist()
        if problem:
            members = MemberTable(to_table(Rows(_rows_of_columns(columns, first, stop))))
        elif members is not None and _differs(columns, first, members):
            what = f"differs from {entry.index}; remove the folder, and it is rebuilt"
            found.append(Finding(file=f"{COLUMNS}/", problem=what))
    elif problem:
        members = None
        problem += f", so the bytes of {entry.name} {UNCHECKED}"
        problem += f", and {ONLY_INDEX}" if located.is_view else ""
    if problem:
        found.append(Finding(file=entry.index, problem=problem))
    return members, found


def _differs(columns: Columns, first: int, table: MemberTable) -> bool:
    """Return whether the columns hold other samples from `first` on than an index."""
    stop = first + len(table.table)
    members = np.arange(*columns.sample_member[[first, stop]].tolist())
    keys = table.table["key"].cast(pa.large_string()).combine_chunks()
    return not (
        np.array_equal(columns.member_offset[members], table.offset)
        and np.array_equal(columns.member_size[members], table.size)
        and np.array_equal(columns.member_crc32[members], table.crc32)
        and np.array_equal(columns.text_bytes[first:stop], table.table["text_bytes"].to_numpy())
        and columns.strings("key", first, stop).equals(keys)
    )
