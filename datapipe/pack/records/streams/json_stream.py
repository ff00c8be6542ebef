"""JSON files of any size, one record or member at a time.

They are read in chunks, so that memory stays flat. ijson is as fast, but refuses what Python's own
parser reads (NaN, integers of over 64 bits, a byte order mark), and one text that is not UTF-8
costs the whole file with it.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import Reject
from datapipe.pack.records.streams.text_file import CONVERT, is_utf8, open_text

READ_BYTES = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]*")
# No token but a string is longer than this, so an error further from the end is no cut-off token.
_LONGEST_TOKEN = 16
_UNCLOSED = "Unterminated string"
_MANY = 4300  # digits; Python refuses to read integers of more
_CHUNK = 4 << 20
_BOM = b"\xef\xbb\xbf"
_LONGEST_FIRST = 8 << 20
_SMALL = 64 << 20
_OF_RECORD = re.compile(r"(^|_)(id|image|img|file|file_?name)$", re.IGNORECASE)


class NotRecordsError(PackError):
    """Error for a JSON file that holds one object and not records."""


class JsonText(NamedTuple):
    """Text of a record, which a worker parses."""

    text: bytes | str  # a line, or what stands in an array
    line: str = ""  # name of the line in rejects

    def parse(self) -> Any:
        """Return the record; a `Reject` if its line is not UTF-8 or not JSON.

        RecursionError if it is too deep, and no line of its own.
        """
        text = self.text
        try:
            # Of bytes, `loads` would guess the encoding, and take NULs for UTF-16 or UTF-32.
            return json.loads(text if isinstance(text, str) else text.decode())
        except UnicodeDecodeError as error:
            reason = f"line is not UTF-8 at byte {error.start}"
        except (ValueError, RecursionError) as error:
            if not self.line:  # it was parsed once, to find its end, with more of the stack left
                raise RecursionError from error
            is_binary = isinstance(text, bytes) and b"\0" in text
            reason = "line holds NUL bytes" if is_binary else f"line is not JSON: {error}"
        return Reject(self.line, reason, "DecodeError")


def read_json(file: BinaryIO, path: Path, name: str, *, as_text: bool = False) -> Iterator[Any]:
    """Yield every record of a file that holds an array, or one record a line.

    A line that is not UTF-8 or not JSON, and a record of an array that is not UTF-8, is a `Reject`.
    With `as_text`, records come as `JsonText`, and so do lines that will turn out to be broken.
    Errors call the file `path`, which ends in `.json` if it may hold one object only; the sources
    of rejects call it `name`.

    Raises:
        NotRecordsError: the file holds one object.
        PackError: an array is broken, so that what follows has no meaning.
    """
    head = file.read(4096).removeprefix(_BOM).lstrip()
    file.seek(0)
    if head[:1] == b"[" and not _is_lists(file):
        cursor = _JsonCursor(path, file, of_records=True)
        for number, value in enumerate(cursor.items("an array")):
            text = cursor.last_text()
            if is_utf8(text):
                yield JsonText(text) if as_text else value
            else:
                yield Reject(f"{name}#{number}", "record is not UTF-8", "DecodeError")
        cursor.expect_end("array")
        return
    if path.suffix.lower() == ".json" and _is_one_object(file):
        raise NotRecordsError(
            f"{path} is one JSON object, not records; what is read is an array of records or one "
            "record a line. If it is lines, and the first is broken, call it .jsonl"
        )
    for number, line in enumerate(file, 1):
        data = line.removeprefix(_BOM) if number == 1 else line
        if data.strip():
            record = JsonText(data, f"{name}:{number}")
            yield record if as_text else record.parse()


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
        text = _JsonCursor(path, file, most)
        for name in text.names():
            if name not in names:
                text.skip()
                continue
            if name in seen:
                raise PackError(f"{path}: `{name}` stands in it twice; leave one")
            seen.add(name)
            for index, entry in enumerate(text.items(f"an array as `{name}`")):
                yield name, index, entry


def read_members(path: Path, *, most: int | None = None) -> Generator[tuple[str, Any], None, None]:
    """Yield (name, value) of every member of a file's JSON object; see `read_member_arrays`."""
    with open_text(path) as file:
        text = _JsonCursor(path, file, most)
        for name in text.names():
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


class _JsonCursor:
    """Position in a JSON text; text before the position is dropped.

    `most` bytes are looked through, all if None. With `of_records`, the text is an array of
    records, and bytes that are not UTF-8 leave marks in its values. Else such text is an error.
    """

    def __init__(
        self, path: Path, file: BinaryIO, most: int | None = None, *, of_records: bool = False
    ) -> None:
        self._path = path
        self._file = file
        self._left = most
        self._of_records = of_records
        self._noun = "a record" if of_records else "a value"
        errors = "surrogateescape" if of_records else "strict"
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors)
        self._decode = json.JSONDecoder().raw_decode
        self._buffer = ""
        self._start = 0  # of the last value
        self._position = 0
        self._bytes = 0

    def peek(self) -> str:
        """Return the next character that is not blank, "" at the end, without consuming it."""
        while True:
            match = _SPACE.match(self._buffer, self._position)
            assert match is not None
            self._position = match.end()
            if self._position < len(self._buffer):
                return self._buffer[self._position]
            if not self._more():
                return ""

    def items(self, what: str) -> Iterator[Any]:
        """Consume an array, called `what` in errors, and yield its values."""
        self._expect("[", what)
        for _ in self._until("]", "array"):
            yield self.value()

    def names(self) -> Iterator[str]:
        """Yield the names of an object's members, whose values the caller consumes in between."""
        self._expect("{", "an object")
        for _ in self._until("}", "object"):
            if self.peek() != '"':
                raise self.broken("the name of a member")
            name: str = self.value()
            self._expect(":", "a colon")
            yield name
        self.expect_end("object")

    def expect_end(self, what: str) -> None:
        """Raise a PackError if something follows."""
        if self.peek():
            raise self.broken(f"nothing behind the {what}'s end")

    def _expect(self, character: str, what: str) -> None:
        if self.peek() != character:
            raise self.broken(what)
        self._position += 1

    def _until(self, end: str, what: str) -> Iterator[None]:
        """Yield before each item of an array or object, which the caller consumes, up to `end`."""
        while self.peek() != end:
            yield
            if (found := self.peek()) == ",":
                self._position += 1
                if self.peek() != end:
                    continue
                raise self.broken(self._noun if what == "array" else "the name of a member")
            if found != end:
                raise self.broken(f"{'a comma or ' if found else ''}the end of the {what}")
        self._position += 1

    def value(self) -> Any:
        """Consume and return a value."""
        self.peek()
        while True:
            start = self._position
            try:
                value, end = self._decode(self._buffer, start)
            except json.JSONDecodeError as error:
                near_end = len(self._buffer) - error.pos <= _LONGEST_TOKEN
                if (near_end or error.msg.startswith(_UNCLOSED)) and self._more():
                    continue
                self._position += error.pos - start
                raise self.broken(f"{self._noun} ({error.msg})") from error
            except ValueError as error:
                raise self.broken(f"an integer of at most {_MANY:,} digits") from error
            except RecursionError as error:
                raise self.broken(f"{self._noun} that is not nested as deeply") from error
            # A number may go on behind the buffer: of `1.5`, `1.` is decoded as 1.
            number = isinstance(value, int | float)
            if number and len(self._buffer) - end <= _LONGEST_TOKEN and self._more():
                continue
            self._start = self._position  # reading on may have moved it
            self._position += end - start
            return value

    def skip(self) -> None:
        """Consume a value, of an array one item at a time."""
        if self.peek() == "[":
            for _ in self.items("an array"):
                pass
        else:
            self.value()

    def last_text(self) -> str:
        """Return the last value as it stands in the file."""
        return self._buffer[self._start : self._position]

    def broken(self, expected: str) -> PackError:
        """Return the error for something else than what was expected here."""
        rest = len(self._buffer[self._position :].encode("utf-8", "surrogatepass"))
        offset = self._bytes - len(self._decoder.getstate()[0]) - rest
        end = "" if self._buffer[self._position :] else ", where the file ends"
        what = "a valid JSON array" if self._of_records else "the JSON object it should be"
        remedy = "copy or write it again"
        if self._of_records:
            remedy = "write it as JSONL, where a broken line costs only itself"
        return PackError(
            f"{self._path} is not {what}: expected {expected} at about byte {offset}{end}; mend "
            f"the file, or {remedy}"
        )

    def _more(self) -> bool:
        """Read on, so that the buffer starts at the position; return whether there is more."""
        rest = self._buffer[self._position :]
        if self._left is not None and self._left <= 0:
            raise PackError(f"{self._path}: the first {self._bytes:,} bytes do not hold it")
        while True:
            # Reading as much again as there is keeps retries linear in the value's length.
            data = self._file.read(max(READ_BYTES, len(rest)))
            try:
                chunk = self._decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                offset = self._bytes - len(self._decoder.getstate()[0]) + error.start
                raise PackError(
                    f"{self._path} is not UTF-8 at about byte {offset}; {CONVERT}"
                ) from error
            self._bytes += len(data)
            if self._left is not None:
                self._left -= len(data)
            if chunk or not data:
                break
        self._buffer, self._position = rest + chunk, 0
        return bool(chunk)
