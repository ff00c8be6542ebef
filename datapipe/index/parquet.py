"""The index of one shard: a Parquet table with a row per sample."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datapipe.array_types import Bools, Int32, Int64
from datapipe.errors import IndexMismatch
from datapipe.index.manifest import Shard
from datapipe.index.rows import Rows
from datapipe.report.table import counted

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        # Of the first image; null for text alone. These are what filters are written on.
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("images", pa.int32(), nullable=False),
        pa.field("text_bytes", pa.int64(), nullable=False),
        pa.field("image_width", pa.list_(pa.int32()), nullable=False),
        pa.field("image_height", pa.list_(pa.int32()), nullable=False),
        pa.field("orientation", pa.list_(pa.int8()), nullable=False),
        pa.field("ext", pa.list_(pa.string()), nullable=False),
        pa.field("offset", pa.list_(pa.int64()), nullable=False),
        pa.field("size", pa.list_(pa.int64()), nullable=False),
        pa.field("crc32", pa.list_(pa.uint32()), nullable=False),
    ],
    metadata={"datapipe": "1"},
)

_REMEDY = (
    "restore it, or rebuild it: `datapipe index --force` for shards that someone else wrote, a new "
    "pack for others"
)


# Arrays are made of buffers: `pa.array` checks for objects of pandas, and importing pandas takes
# half a second wherever it is installed.
def to_table(rows: Rows) -> pa.Table:
    """Return rows as a table of `SCHEMA`."""
    members, images = _edges(rows.members), _edges(rows.images)
    has_image = np.array(rows.images, bool)
    first = images[:-1][has_image]
    columns: dict[str, pa.Array] = {
        "key": _strings(rows.key),
        "source": _strings(rows.source),
        "text_bytes": _numbers(rows.text_bytes, np.int64),
        "images": _numbers(rows.images, np.int32),
    }
    for name in ("width", "height"):
        values = np.array(getattr(rows, name), np.int32)
        of_first = np.zeros(len(rows), np.int32)
        of_first[has_image] = values[first]
        columns[name] = _numbers(of_first, np.int32, has_image)
        columns[f"image_{name}"] = _lists(images, _numbers(values, np.int32))
    columns["orientation"] = _lists(images, _numbers(rows.orientation, np.int8))
    columns["ext"] = _lists(members, _strings(rows.ext))
    columns["offset"] = _lists(members, _numbers(rows.offset, np.int64))
    columns["size"] = _lists(members, _numbers(rows.size, np.int64))
    columns["crc32"] = _lists(members, _numbers(rows.crc32, np.uint32))
    return pa.Table.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def with_offsets(table: pa.Table, offsets: Int64) -> pa.Table:
    """Return rows whose members are at other offsets: int64, one for each member."""
    members = _edges(pc.list_value_length(table["offset"]).to_numpy())
    column = _lists(members, _numbers(offsets, np.int64))
    columns = [column if name == "offset" else table[name] for name in SCHEMA.names]
    return pa.Table.from_arrays(columns, schema=SCHEMA)  # without what reading a file adds to it


def _edges(counts: Any) -> Int32:
    edges = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(np.array(counts, np.int32), out=edges[1:])
    return edges


def _numbers(values: Any, dtype: Any, valid: Bools | None = None) -> pa.Array:
    array = np.array(values, dtype)
    bits = None
    if valid is not None and not valid.all():
        bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(array.dtype), len(array), [bits, pa.py_buffer(array)]
    )


def _strings(values: Sequence[str]) -> pa.Array:
    encoded = [value.encode() for value in values]
    edges = _edges([len(value) for value in encoded])
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def _lists(edges: Int32, values: pa.Array) -> pa.Array:
    buffers = [None, pa.py_buffer(edges)]
    return pa.Array.from_buffers(pa.list_(values.type), len(edges) - 1, buffers, children=[values])


def write_index(path: Path, table: pa.Table) -> str:
    """Write `table`, the index of one shard, durably at `path`.

    The caller renames it into place. Returns the sha256 of the file, in hex.
    """
    with path.open("wb") as file:
        pq.write_table(table, file, compression="zstd", use_dictionary=False)
        file.flush()
        os.fsync(file.fileno())
    return file_sha256(path)


def read_index(path: Path, *, sha256: str | None = None) -> pa.Table:
    """Read the index of one shard; its sha256, in hex, is compared before anything is parsed.

    Raises `IndexMismatch` if the file is missing, damaged, or not an index.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise IndexMismatch(f"{path}: index of the shard is missing; {_REMEDY}") from None
    except OSError as error:
        raise IndexMismatch(f"{path}: index of the shard is damaged: {error}") from error
    return parse_index(content, str(path), sha256=sha256)


def parse_index(content: bytes, path: str, *, sha256: str | None = None) -> pa.Table:
    """Parse the content of an index file, as `read_index` does; `path` is its name in messages."""
    try:
        if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
            raise IndexMismatch(
                f"{path} is not the index that dataset.json was written for; {_REMEDY}"
            )
        file = pq.ParquetFile(pa.BufferReader(content))  # `read_table` imports pandas
        # A thread of Arrow's that drops `content` while the interpreter ends aborts the process.
        table = file.read(use_threads=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise IndexMismatch(f"{path}: index of the shard is damaged: {error}") from error
    if not table.schema.equals(SCHEMA):
        raise IndexMismatch(f"{path}: this Parquet file is not a shard index of this version")
    return table


def checked_index(home: Path, shard: Shard) -> pa.Table:
    """Read the index of a shard; `IndexMismatch` if it is missing, damaged or of another shard."""
    path = home / shard.index
    table = read_index(path, sha256=shard.index_sha256)
    if table.num_rows != shard.samples:
        raise IndexMismatch(
            f"{path} has {counted(table.num_rows, 'sample')}, the manifest says {shard.samples:,}; "
            "restore both from one copy of the dataset"
        )
    return table


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
