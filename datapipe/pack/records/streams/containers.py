"""Files of records, whatever their container."""

from __future__ import annotations

import codecs
import io
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from datapipe.errors import PackError
from datapipe.pack.input.file_kinds import kind_of_name
from datapipe.pack.input.raw_sample import Reject
from datapipe.pack.records.streams import parquet_records
from datapipe.pack.records.streams.csv_records import read_csv
from datapipe.pack.records.streams.json_stream import read_json
from datapipe.pack.records.streams.text_file import CONVERT, open_text

_SAMPLE = 4 << 20
_FIRST = 100


def kind_of(path: Path) -> str:
    """Return json, csv, tsv or parquet by a file's name; "" for a file that holds no records."""
    return kind_of_name(path.name)


def read_file(path: Path, name: str, *, as_text: bool = False) -> Generator[tuple[str, Any]]:
    """Yield every record of a file with its source, `name#17`; PackError if it cannot be read.

    A record is an object or a `Reject`; with `as_text`, those of JSON come as their `JsonText`.
    """
    for number, record in enumerate(_records(path, name, as_text)):
        source = f"{name}#{number}"
        yield (source, record) if as_text else checked_record(source, record)


def estimate_file(path: Path) -> int:
    """Estimate how many records a file has: of Parquet all, of others as many as its start has."""
    if kind_of(path) == "parquet":
        return parquet_records.count_rows(path)
    with open_text(path) as file:
        start = file.read(_SAMPLE)
        whole = not file.read(1)
        read = getattr(file, "fileobj", file).tell()  # of a gzip file, bytes before unpacking
        number = 0
        with suppress(*() if whole else (PackError,)):
            for _ in _read_text(io.BytesIO(start), path, ""):
                number += 1
    return number if whole else max(number, 1) * path.stat().st_size // max(read, 1)


def first_record(path: Path) -> dict[str, Any] | None:
    """Return the first record that can be read, among the first few; None where there is none."""
    if kind_of(path) == "parquet":
        return parquet_records.first_row(path)
    return next(first_records(path), None)


def first_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield those of the first 100 records that can be read."""
    with closing(read_file(path, path.name)) as records:
        for _, record in islice(records, _FIRST):
            if isinstance(record, dict):
                yield record


def cannot_be_read(path: Path) -> bool:
    """Return whether a file is damaged as a whole, not fetched, or not UTF-8."""
    try:
        with parquet_records.open_parquet(path) if kind_of(path) == "parquet" else open_text(path):
            return False
    except PackError:
        return True


def not_utf8(path: Path) -> str:
    """Return what is wrong with the encoding of a file's start, with the remedy; else ""."""
    if kind_of(path) in ("", "parquet"):
        return ""
    with open_text(path) as file:
        start = file.read(_SAMPLE)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)  # its end may be half a letter
    except UnicodeDecodeError as error:
        return f"{path} is not UTF-8 at byte {error.start}; {CONVERT}"
    return ""


def _records(path: Path, name: str, as_text: bool) -> Iterator[Any]:
    if kind_of(path) == "parquet":
        yield from parquet_records.read_parquet(path, name)
        return
    with open_text(path) as file:
        yield from _read_text(file, path, name, as_text=as_text)


def _read_text(file: BinaryIO, path: Path, name: str, *, as_text: bool = False) -> Iterator[Any]:
    kind = kind_of(path)
    if kind == "json":
        return read_json(file, path, name, as_text=as_text)
    return read_csv(file, path, name, "," if kind == "csv" else "\t")


def checked_record(source: str, record: Any) -> tuple[str, dict[str, Any] | Reject]:
    """Return a source and what a file holds there, as a record or a reject.

    A conversation that is a list by itself becomes a record. A reject keeps its own source.
    """
    if isinstance(record, dict):
        return source, record
    if isinstance(record, Reject):
        return record.source, record
    if turns := _bare_turns(record):
        return source, turns
    return source, Reject(
        source, f"record is a {type(record).__name__}, not an object", "DecodeError"
    )


def _bare_turns(record: Any) -> dict[str, Any] | None:
    """Return a record around a list that is a conversation by itself; None for other values."""
    if not isinstance(record, list) or not record or not all(isinstance(t, dict) for t in record):
        return None
    if all("from" in turn and "value" in turn for turn in record):
        return {"conversations": record}
    # A message that only calls tools has no content.
    if all("role" in turn for turn in record) and any("content" in turn for turn in record):
        return {"messages": record}
    return None
