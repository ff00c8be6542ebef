"""The index of one shard: a Parquet table with a row per sample."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.errors import IndexMismatch


@dataclass(frozen=True, slots=True)
class Member:
    """One file inside a shard.

    Attributes:
        ext: everything behind the first dot of its name: `jpg`, `1.jpg`, `txt`, `json`.
        offset: byte position of its data in the shard.
        size: bytes.
        crc32: checksum of its data, None where the shard was indexed without being read.
    """

    ext: str
    offset: int
    size: int
    crc32: int | None


@dataclass(frozen=True, slots=True)
class ImageSize:
    """Pixels of one image after its EXIF orientation, and that orientation (1 to 8)."""

    width: int
    height: int
    orientation: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one sample.

    Attributes:
        key: name of the sample; its members are called `key.ext`.
        members: in the order of the shard.
        images: in the order of the image members.
        text_bytes: UTF-8 length of the sample's text.
        source: where the sample came from.
    """

    key: str
    members: tuple[Member, ...]
    images: tuple[ImageSize, ...]
    text_bytes: int
    source: str


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


def to_table(rows: Sequence[Row], starts: Sequence[int] | None = None) -> pa.Table:
    """Rows as a table of `SCHEMA`; `starts` are added to the offsets of each row, in bytes."""
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for row, start in zip(rows, starts or [0] * len(rows), strict=True):
        first = row.images[0] if row.images else None
        columns["key"].append(row.key)
        columns["source"].append(row.source)
        columns["width"].append(first.width if first else None)
        columns["height"].append(first.height if first else None)
        columns["images"].append(len(row.images))
        columns["text_bytes"].append(row.text_bytes)
        columns["image_width"].append([image.width for image in row.images])
        columns["image_height"].append([image.height for image in row.images])
        columns["orientation"].append([image.orientation for image in row.images])
        columns["ext"].append([member.ext for member in row.members])
        columns["offset"].append([start + member.offset for member in row.members])
        columns["size"].append([member.size for member in row.members])
        columns["crc32"].append([member.crc32 for member in row.members])
    return pa.table(columns, schema=SCHEMA)


def write_index(path: Path, rows: Sequence[Row], starts: Sequence[int] | None = None) -> str:
    """Write the index of one shard durably at `path`; return the sha256 of the file, in hex.

    The caller renames it into place.
    """
    with path.open("wb") as file:
        pq.write_table(to_table(rows, starts), file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    return file_sha256(path)


def read_index(path: Path) -> pa.Table:
    """Read the index of one shard.

    Raises:
        IndexMismatch: the file is missing, damaged, or not an index.
    """
    try:
        with path.open("rb") as file:  # pyarrow would take a path such as `s3:x` for an address
            table = pq.read_table(file)
    except FileNotFoundError:
        raise IndexMismatch(
            f"{path}: index of the shard is missing; restore it, or make it anew: `datapipe index "
            "--force` for shards that someone else wrote, a new pack for others"
        ) from None
    except (pa.ArrowException, OSError) as error:
        raise IndexMismatch(f"{path}: index of the shard is damaged: {error}") from error
    if not table.schema.equals(SCHEMA):
        raise IndexMismatch(f"{path}: this Parquet file is not a shard index of this version")
    return table


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
