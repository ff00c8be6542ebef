"""Files of text in UTF-8, opened for reading, unpacked if they are gzip."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datapipe.errors import PackError
from datapipe.pack.records.streams.parquet_records import refuse_pointer

CONVERT = (
    "convert it from the encoding that it is in, for example with `iconv -f WINDOWS-1252 -t UTF-8`"
)
"""Remedy for text that is not UTF-8."""

_OTHER_BOMS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


def is_utf8(text: str) -> bool:
    """Return whether a text can be written as UTF-8: it has no marks of other bytes."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


@contextmanager
def open_text(path: Path) -> Iterator[Any]:
    """Open a file; while it is open, errors of the disk and of gzip become a PackError.

    So do UTF-16, UTF-32, and a Git LFS pointer whose file was never fetched.
    """
    try:
        with gzip.GzipFile(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            head = file.read(40)
            if head.startswith(_OTHER_BOMS):
                raise PackError(
                    f"{path} is not UTF-8 but UTF-16 or UTF-32; convert it, "
                    "for example with `iconv -f UTF-16 -t UTF-8`"
                )
            refuse_pointer(path, head)
            file.seek(0)
            yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise PackError(f"{path} is damaged ({error}); download or write it again") from error
    except OSError as error:
        raise PackError(f"{path}: cannot be read: {error.strerror or error}") from error
