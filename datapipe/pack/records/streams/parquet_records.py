"""Records of Parquet files, few at a time, so that memory stays flat with images in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import Reject

_BATCH_BYTES = 4 << 20
_MOST_ROWS = 128
_BUFFER = 1 << 20


def open_parquet(path: Path) -> pq.ParquetFile:
    """Return an open file and read only its footer; PackError if it is damaged."""
    try:
        # With a buffer, a column is read page by page; without, a whole row group at once.
        file = pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
        names = file.schema_arrow.names
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        file.close()
        raise PackError(f"{path} has columns of one name: {', '.join(twice)}; rename one")
    return file


def read_parquet(path: Path, name: str) -> Iterator[dict[str, Any] | Reject]:
    """Yield every row as {column: value}, or a `Reject`; PackError where damage shows."""
    number = 0
    with open_parquet(path) as file:
        try:
            for batch in file.iter_batches(batch_size=_batch_rows(file), use_threads=False):
                yield from _rows(batch, name, number)
                number += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, error) from error


def first_row(path: Path) -> dict[str, Any] | None:
    """Return the first row, in which a null does not hide that its column holds images or bytes.

    It is {bytes: None, path: None} in a column of image structs, and b"" in one of bytes.
    """
    row = next((row for row in read_parquet(path, path.name) if isinstance(row, dict)), None)
    if row is not None:
        with open_parquet(path) as file:
            for field in file.schema_arrow:
                if row[field.name] is None:
                    row[field.name] = _null_of(field.type)
    return row


def count_rows(path: Path) -> int:
    """Return the number of rows, by the footer."""
    with open_parquet(path) as file:
        return int(file.metadata.num_rows)


def columns_of(path: Path) -> dict[str, str]:
    """Return the columns with their types; equal content has equal types."""
    with open_parquet(path) as file:
        return {field.name: _type_name(field.type) for field in file.schema_arrow}


def _null_of(type: pa.DataType) -> Any:
    if pa.types.is_struct(type) and {field.name for field in type} == {"bytes", "path"}:
        return {"bytes": None, "path": None}
    return b"" if pa.types.is_binary(type) or pa.types.is_large_binary(type) else None


def _type_name(type: pa.DataType) -> str:
    if pa.types.is_dictionary(type):
        type = type.value_type
    return str(type).replace("large_", "").replace("_view", "")


def _batch_rows(file: pq.ParquetFile) -> int:
    """Return how many rows have about 4 MiB."""
    meta = file.metadata
    size = sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
    rows = meta.num_rows * _BATCH_BYTES // max(size, 1)
    return int(min(max(rows, 1), _MOST_ROWS))


def _rows(batch: pa.RecordBatch, name: str, start: int) -> Iterator[dict[str, Any] | Reject]:
    batch = _without_nanoseconds(batch)
    # Text that is not UTF-8, and dates that Python does not have, are looked for row by row.
    with suppress(ValueError, OverflowError, pa.ArrowException):
        yield from batch.to_pylist()
        return
    for index in range(batch.num_rows):
        try:
            (row,) = batch.slice(index, 1).to_pylist()
        except (ValueError, OverflowError, pa.ArrowException) as error:
            reason = f"row has a value that cannot be read: {error}"
            yield Reject(f"{name}#{start + index}", reason, "DecodeError")
        else:
            yield row


def _without_nanoseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return times in nanoseconds as text, durations as numbers: Python's own hold neither."""
    for index, field in enumerate(batch.schema):
        if getattr(field.type, "unit", "") == "ns":
            target = pa.int64() if pa.types.is_duration(field.type) else pa.string()
            batch = batch.set_column(index, field.name, batch.column(index).cast(target))
    return batch


def refuse_pointer(path: Path, head: bytes) -> None:
    """Refuse what Git leaves in place of a large file that was not fetched."""
    if head.startswith(b"version https://git-lfs"):
        raise PackError(f"{path} is a Git LFS pointer, not the file itself; run `git lfs pull`")


def _damaged(path: Path, error: Exception) -> PackError:
    try:
        with path.open("rb") as file:
            head = file.read(40)
    except OSError as reason:
        return PackError(f"{path}: cannot be read: {reason.strerror}")
    refuse_pointer(path, head)
    if head.startswith(b"\x1f\x8b"):
        return PackError(f"{path} is Parquet inside gzip, or no Parquet at all; run gunzip on it")
    return PackError(
        f"{path} is damaged or no Parquet file ({error}); download or write it again, "
        "or move it elsewhere"
    )
