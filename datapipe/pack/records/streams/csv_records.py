"""Records of CSV and TSV files with a header, one at a time."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import Reject
from datapipe.pack.records.images.fields import is_image
from datapipe.pack.records.streams.text_file import CONVERT, is_utf8
from datapipe.report.table import counted

_LARGEST_FIELD = 1 << 26
_NAMED = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)


def read_csv(file: BinaryIO, path: Path, name: str, delimiter: str) -> Iterator[Any]:
    """Yield every row as {column: text}; a row that cannot be told apart comes as a `Reject`.

    Quoting is that of RFC 4180. Errors call the file `path`, the sources of rejects call it `name`.
    `delimiter` stands between fields, unless the header has one other mark instead, or a line
    before it says so, as Excel's `sep=;`. PackError if there is no header but a row with an
    image, or if the header has a column twice, or one without a name that is not the first (as
    pandas leaves its index).
    """
    # The limit belongs to the process, so it is only ever raised.
    csv.field_size_limit(max(csv.field_size_limit(), _LARGEST_FIELD))
    text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
    with text:
        head = text.readline()
        if named := _NAMED.fullmatch(head):
            delimiter, head = named[1], text.readline()
        else:
            delimiter = _delimiter(head, delimiter)
        # Some write a blank behind each: `image_name| comment_number| comment`.
        spaced = head.count(delimiter) == head.count(delimiter + " ") > 0
        lines = chain([head], text)
        rows = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=spaced)
        columns = _header(rows, path)
        above = 1 if named else 0
        before = above + rows.line_num
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                reason = f"row is not valid: {error}"
            else:
                reason = _fault(row, len(columns))
            first, before = before + 1, above + rows.line_num
            if reason:
                where = f" (lines {first} to {before})" if before > first else ""
                yield Reject(f"{name}:{first}", reason + where, "DecodeError")
            elif row:
                yield dict(zip(columns, row, strict=True))


def _delimiter(header: str, expected: str) -> str:
    """Return what separates the fields: another than expected if the header has only that other."""
    others = [mark for mark in (",", ";", "\t", "|") if mark != expected and mark in header]
    return others[0] if expected not in header and len(others) == 1 else expected


def _header(rows: Any, path: Path) -> list[str]:
    try:
        columns: list[str] = next(rows, [])
    except csv.Error as error:
        raise PackError(f"{path}: header is not valid: {error}") from error
    if fault := _fault(columns, len(columns)):
        raise PackError(f"{path}: header: {fault}")
    twice = sorted(column for column, count in Counter(columns).items() if count > 1)
    if twice:
        raise PackError(f"{path}: the header has {', '.join(map(repr, twice))} more than once")
    images = [number for number, column in enumerate(columns, 1) if is_image(column)]
    if images:
        raise PackError(
            f"{path}: column {images[0]} of the first line holds an image, so the line is a row; "
            "put a line with the names of the columns above it, such as `id,image,caption`"
        )
    if "" in columns[1:]:
        number = columns.index("", 1) + 1
        raise PackError(f"{path}: column {number} of the header has no name; give it one")
    return columns


def _fault(row: list[str], columns: int) -> str:
    """Return what is wrong with a row, or nothing; a blank line is an empty row."""
    joined = "".join(row)
    if "\0" in joined:
        return "row holds NUL bytes, as UTF-16 does; convert it, as with `iconv -f UTF-16 -t UTF-8`"
    if not is_utf8(joined):
        return f"row is not UTF-8; {CONVERT}"
    if row and len(row) != columns:
        return f"row has {counted(len(row), 'field')} where the header has {columns}"
    return ""
