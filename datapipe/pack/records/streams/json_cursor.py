"""Position in the text of a JSON file that is read in chunks, so that memory stays flat.

ijson is as fast, but refuses what Python's own parser reads (NaN, integers of over 64 bits, a byte
order mark), and one text that is not UTF-8 costs the whole file with it.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from datapipe.errors import PackError
from datapipe.pack.records.streams.text_file import is_utf8

_READ = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]*")
# No token but a string is longer than this, so an error further from the end is no cut-off token.
_LONGEST_TOKEN = 16
_UNCLOSED = "Unterminated string"
_MANY = 4300  # digits; Python refuses to read integers of more


class JsonCursor:
    """Position in a JSON text; text before the position is dropped.

    `most` bytes are looked through, all if None. With `of_records`, the text is an array of
    records, of which one that is not UTF-8 costs only itself: see `is_utf8`. Else such text is an
    error.
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
        self._clean = True  # the buffer has no marks of bytes that are not UTF-8
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

    def expect(self, character: str, what: str) -> None:
        """Consume this character; raise a PackError at another."""
        if self.peek() != character:
            raise self.broken(what)
        self._position += 1

    def until(self, end: str, what: str) -> Iterator[None]:
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
        if self.peek() != "[":
            self.value()
            return
        self._position += 1
        for _ in self.until("]", "array"):
            self.value()

    def is_utf8(self) -> bool:
        """Return whether the last value has no marks of bytes that are not UTF-8."""
        return self._clean or is_utf8(self._buffer[self._start : self._position])

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
            data = self._file.read(max(_READ, len(rest)))
            try:
                chunk = self._decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                offset = self._bytes - len(self._decoder.getstate()[0]) + error.start
                raise PackError(
                    f"{self._path} is not UTF-8 at about byte {offset}; convert it, for example "
                    "with `iconv -t UTF-8`"
                ) from error
            self._bytes += len(data)
            if self._left is not None:
                self._left -= len(data)
            if chunk or not data:
                break
        self._buffer, self._position = rest + chunk, 0
        self._clean = not self._of_records or is_utf8(self._buffer)
        return bool(chunk)
