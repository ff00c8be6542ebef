"""Content of files, judged by their first bytes."""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from datapipe.errors import PackError

_START = 1 << 16  # bytes of a text that tell what it holds
_LINES = 200
# A path and nothing else; names with blanks are taken for sentences.
_ONLY_NAME = re.compile(rb"\S+\.(jpe?g|png|webp|gif|bmp|tiff?)|", re.IGNORECASE)
_LABELS_LOOKED_AT = 5
# A line of boxes: four numbers or more, of a class and a box such as "0 0.5 0.5 0.1 0.2".
_BOX = re.compile(rb"\s*[-+]?[\d.]+(e[-+]?\d+)?([\s,]+[-+]?[\d.]+(e[-+]?\d+)?){3,}[\s,]*", re.I)


def start_of(path: str | os.PathLike[str], most: int = _START) -> bytes:
    """Return the first bytes of a file; none if it cannot be read or is a pipe."""
    with suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return os.read(descriptor, most)
        finally:
            os.close(descriptor)
    return b""


def ends_of(path: Path, most: int) -> tuple[bytes, bytes]:
    """Return the first and the last bytes of a file; PackError if it cannot be read."""
    try:
        with path.open("rb") as file:
            start = file.read(most)
            file.seek(max(os.fstat(file.fileno()).st_size - most, 0))
            return start, file.read(most)
    except OSError as error:
        raise PackError(f"{path}: cannot be read: {error.strerror}") from error


def start_of_text(path: Path) -> bytes:
    """Return the first bytes of a text or of records, decompressed if the file is gzipped."""
    return text_and_length(path)[0]


def text_and_length(path: Path) -> tuple[bytes, int]:
    """Return what `start_of_text` does, and how many bytes it takes in the file."""
    start = start_of(path)
    if path.suffix.lower() != ".gz":
        return start, len(start)
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    with suppress(zlib.error):
        text = unpacker.decompress(start, _START)
        return text, len(start) - len(unpacker.unconsumed_tail)
    return b"", 0


def are_names_alone(start: bytes) -> bool:
    """Return whether a text is nothing but names of images, as split lists are; by its start."""
    lines = start.splitlines()[:_LINES]
    return any(lines) and all(_ONLY_NAME.fullmatch(line.strip()) for line in lines)


def seems_records(path: Path) -> bool:
    """Return whether a JSON file is no sidecar but holds records: an array, lines or COCO."""
    start = start_of_text(path).lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"["):
        return re.match(rb"\[\s*\{", start) is not None
    return b'"annotations"' in start or b'"images"' in start or b"}\n{" in start


def are_labels(paths: Iterable[str]) -> bool:
    """Return whether texts hold nothing but boxes, as YOLO's labels do: judged by the first few.

    A caption may be a number, even two; lines of four and more are boxes. Empty texts, as YOLO
    keeps for images without objects, say nothing.
    """
    looked_at = 0
    for path in islice(paths, 10 * _LABELS_LOOKED_AT):
        if path.endswith((".json", ".JSON")):
            continue
        lines = start_of(path).strip().splitlines()
        if lines and not all(_BOX.fullmatch(line) for line in lines[:20]):
            return False
        looked_at += bool(lines)
        if looked_at >= _LABELS_LOOKED_AT:
            break
    return looked_at > 0
