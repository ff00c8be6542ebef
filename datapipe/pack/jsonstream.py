"""Records of a JSON array or a JSONL file, one at a time, so that memory stays flat."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datapipe.errors import PackError
from datapipe.pack.raw import Reject

_READ = 1 << 20
_SPACE = " \t\r\n"
_BEHIND_NUMBER = (*_SPACE, ",", "]")


def is_json_lines(path: Path) -> bool:
    """Whether a file holds one record a line rather than one array."""
    with path.open("rb") as file:
        return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] != b"["


def read_records(path: Path) -> Iterator[Any]:
    """Every record of the file; a broken line of a JSONL file comes as a `Reject`.

    Raises:
        PackError: the file is missing, or an array is broken, where what follows has no meaning.
    """
    try:
        lines = is_json_lines(path)
    except OSError as error:
        raise PackError(f"{path}: cannot be read: {error.strerror}") from error
    yield from _read_lines(path) if lines else _read_array(path)


def first_record(path: Path) -> Any:
    """The first record, or None where the file holds none that can be read."""
    try:
        return next(iter(read_records(path)), None)
    except (PackError, OSError):
        return None


def count_records(path: Path, mark: bytes) -> int:
    """How often `mark` stands in the file: a quick estimate of its number of records."""
    count, tail = 0, b""
    with path.open("rb") as file:
        while chunk := file.read(1 << 24):
            count += (tail + chunk).count(mark)
            tail = chunk[-len(mark) + 1 :]
    return count


def _read_lines(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if not text.strip():
                continue
            try:
                yield json.loads(text)
            except (ValueError, RecursionError) as error:
                yield Reject(f"{path.name}:{number}", f"line is not JSON: {error}", "DecodeError")


def _read_array(path: Path) -> Iterator[Any]:
    decode = json.JSONDecoder().raw_decode
    with path.open(encoding="utf-8-sig", errors="strict") as file:
        try:
            buffer = file.read(_READ).lstrip(_SPACE)[1:]
            position, more, expect_value = 0, True, True
            while True:
                while position < len(buffer) and buffer[position] in _SPACE:
                    position += 1
                if position < len(buffer):
                    if buffer[position] == "]":
                        rest = buffer[position + 1 :]
                        while not rest.strip(_SPACE) and (rest := file.read(_READ)):
                            pass
                        if rest:
                            raise _broken(path, file.tell(), "nothing behind the array's end")
                        return
                    if not expect_value:
                        if buffer[position] != ",":
                            raise _broken(path, file.tell(), "a comma or the end of the array")
                        position += 1
                        expect_value = True
                        continue
                    try:
                        value, end = decode(buffer, position)
                    except (ValueError, RecursionError) as error:
                        if not more:
                            raise _broken(path, file.tell(), f"a record ({error})") from error
                    else:
                        # A number may go on behind the buffer: of `1.5`, `1.` is decoded as 1.
                        number = isinstance(value, int | float)
                        if not (number and more) or buffer[end : end + 1] in _BEHIND_NUMBER:
                            yield value
                            position, expect_value = end, False
                            continue
                elif not more:
                    raise _broken(path, file.tell(), "the end of the array")
                # Reading as much again as there is keeps retries linear in the record's length.
                chunk = file.read(max(_READ, len(buffer) - position))
                more = bool(chunk)
                buffer, position = buffer[position:] + chunk, 0
        except UnicodeDecodeError as error:
            raise PackError(
                f"{path} is not UTF-8 ({error}); convert it, for example with `iconv -t UTF-8`"
            ) from error


def _broken(path: Path, position: int, expected: str) -> PackError:
    return PackError(
        f"{path} is not a valid JSON array: expected {expected} before about byte {position}; "
        "mend the file, or write it as JSONL, where a broken line costs only itself"
    )
