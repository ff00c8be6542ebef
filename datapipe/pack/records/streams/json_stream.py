"""JSON files of any size, one record or member at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import Reject
from datapipe.pack.records.streams.json_cursor import JsonCursor
from datapipe.pack.records.streams.text_file import open_text

_CHUNK = 4 << 20
_BOM = b"\xef\xbb\xbf"
_LONGEST_FIRST = 8 << 20
_SMALL = 64 << 20
_OF_RECORD = re.compile(r"(^|_)(id|image|img|file|file_?name)$", re.IGNORECASE)


class NotRecordsError(PackError):
    """Error for a JSON file that holds one object and not records."""


def read_json(file: BinaryIO, path: Path, name: str) -> Iterator[Any]:
    """Yield every record of a file that holds an array, or one record a line.

    A line that is not UTF-8 or not JSON, and a record of an array that is not UTF-8, is a `Reject`.
    Errors call the file `path`, which ends in `.json` if it may hold one object only; the sources
    of rejects call it `name`.

    Raises:
        NotRecordsError: the file holds one object.
        PackError: an array is broken, so that what follows has no meaning.
    """
    head = file.read(4096).removeprefix(_BOM).lstrip()
    file.seek(0)
    if head[:1] == b"[" and not _is_lists(file):
        yield from _read_array(file, path, name)
        return
    if path.suffix.lower() == ".json" and _is_one_object(file):
        raise NotRecordsError(
            f"{path} is one JSON object, not records; what is read is an array of records or one "
            "record a line. If it is lines, and the first is broken, call it .jsonl"
        )
    yield from _read_lines(file, name)


def read_member_arrays(
    path: Path, names: Collection[str], *, most: int | None = None
) -> Generator[tuple[str, int, Any], None, None]:
    """Yield (name, index, entry) of the top-level arrays `names` of a UTF-8 file's JSON object.

    Time is linear in the file's size; memory holds a chunk, or one entry of any array or another
    member if that is larger. Names that the object lacks are no error. `most` bytes are looked
    through, all if None.

    Raises:
        PackError: the file cannot be read, is no JSON object or broken, has one of these members
            twice or not as an array; or `most` bytes are used up.
    """
    seen: set[str] = set()
    with open_text(path) as file:
        text = JsonCursor(path, file, most)
        for name in _names(text):
            if name not in names:
                text.skip()
                continue
            if name in seen:
                raise PackError(f"{path}: `{name}` stands in it twice; leave one")
            seen.add(name)
            for index, entry in enumerate(_entries(text, f"an array as `{name}`")):
                yield name, index, entry


def read_members(path: Path, *, most: int | None = None) -> Generator[tuple[str, Any], None, None]:
    """Yield (name, value) of every member of a file's JSON object; see `read_member_arrays`."""
    with open_text(path) as file:
        text = JsonCursor(path, file, most)
        for name in _names(text):
            yield name, text.value()


def small_object(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file of at most 64 MiB holds; {} if it cannot be read so."""
    try:
        held = json.loads(path.read_bytes()) if path.stat().st_size <= _SMALL else {}
    except (ValueError, RecursionError, OSError):
        return {}
    return held if isinstance(held, dict) else {}


def count_marks(path: Path, mark: bytes) -> Iterator[int]:
    """Yield how often `mark` stands in each chunk that has it; PackError if it cannot be read."""
    tail = b""
    with open_text(path) as file:
        while chunk := file.read(_CHUNK):
            if count := (tail + chunk).count(mark):
                yield count
            tail = chunk[len(chunk) + 1 - len(mark) :]


def _is_one_object(file: BinaryIO) -> bool:
    """Return whether the first line begins a longer object, or is a whole dataset (COCO)."""
    line = b""
    while not line and (line := file.readline(_LONGEST_FIRST)):
        line = line.removeprefix(_BOM).strip()
    more = bool(file.read(1))
    file.seek(0)
    if len(line) > _LONGEST_FIRST - 8 and more:
        return True
    text = line.decode(errors="replace")
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        return bool(text) and error.pos >= len(text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(record, dict):
        return False
    whole = all(isinstance(record.get(field), list) for field in ("images", "annotations"))
    return whole or (not more and (is_columnar(record) or _has_records(record)))


def is_columnar(record: dict[str, Any]) -> bool:
    """Return whether an object holds columns, equally long, and not the fields of one record.

    So pandas' `to_json` and `json.dump(dataset.to_dict())` write tables.
    """
    columns = list(record.values())
    if len(columns) < 2 or not all(isinstance(c, dict | list) and len(c) > 1 for c in columns):
        return False
    if all(isinstance(column, dict) for column in columns):
        return all(column.keys() == columns[0].keys() for column in columns) and "0" in columns[0]
    return all(isinstance(c, list) and len(c) == len(columns[0]) for c in columns) and all(
        not isinstance(value, dict) for column in columns for value in column[:1]
    )


def _has_records(record: dict[str, Any]) -> bool:
    """Return whether an object holds a list of records, each with an id or a file of its own."""
    return any(
        isinstance(value, list)
        and len(value) > 1
        and all(isinstance(item, dict) and any(map(_OF_RECORD.search, item)) for item in value)
        for value in record.values()
    )


def _is_lists(file: BinaryIO) -> bool:
    """Return whether each line is a list of its own, as where a line is a conversation."""
    line = file.readline(_LONGEST_FIRST).removeprefix(_BOM)
    more = file.read(4096).strip()
    file.seek(0)
    if not line.endswith(b"\n") or not more.startswith(b"["):
        return False
    try:
        return isinstance(json.loads(line), list)
    except (ValueError, RecursionError):
        return False


def _read_lines(file: BinaryIO, name: str) -> Iterator[Any]:
    for number, line in enumerate(file, 1):
        data = line.removeprefix(_BOM) if number == 1 else line
        if not data.strip():
            continue
        try:
            # Of bytes, `loads` would guess the encoding, and take NULs for UTF-16 or UTF-32.
            yield json.loads(data.decode())
        except UnicodeDecodeError as error:
            reason = f"line is not UTF-8 at byte {error.start}"
            yield Reject(f"{name}:{number}", reason, "DecodeError")
        except (ValueError, RecursionError) as error:
            what = "holds NUL bytes" if b"\0" in data else f"is not JSON: {error}"
            yield Reject(f"{name}:{number}", f"line {what}", "DecodeError")


def _read_array(file: BinaryIO, path: Path, name: str) -> Iterator[Any]:
    text = JsonCursor(path, file, of_records=True)
    for number, value in enumerate(_entries(text, "an array")):
        if text.is_utf8():
            yield value
        else:
            yield Reject(f"{name}#{number}", "record is not UTF-8", "DecodeError")
    if text.peek():
        raise text.broken("nothing behind the array's end")


def _names(text: JsonCursor) -> Iterator[str]:
    """Yield the names of an object's members, whose values the caller takes in between."""
    text.expect("{", "an object")
    for _ in text.until("}", "object"):
        if text.peek() != '"':
            raise text.broken("the name of a member")
        name: str = text.value()
        text.expect(":", "a colon")
        yield name
    if text.peek():
        raise text.broken("nothing behind the object's end")


def _entries(text: JsonCursor, what: str) -> Iterator[Any]:
    text.expect("[", what)
    for _ in text.until("]", "array"):
        yield text.value()
