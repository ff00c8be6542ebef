"""What a reader yields: raw samples whose bytes are read later, by a worker."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datapipe.errors import DecodeError, MissingMember
from datapipe.pack.ustar import MAX_SIZE


def printable(name: str) -> str:
    """A file name in which bytes that are no UTF-8 are written as escapes."""
    return name.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes of one file, or of a stretch of it, read when they are needed.

    Attributes:
        path: the file.
        offset: first byte.
        size: bytes, None up to the end of the file.
        name: what a person would call it in a message.
    """

    path: str | Path
    offset: int = 0
    size: int | None = None
    name: str = ""

    def read(self) -> bytes:
        """The bytes.

        Raises:
            MissingMember: the file is not there.
            DecodeError: it cannot be read, or ends too early.
        """
        try:
            # Without O_NONBLOCK, opening a named pipe waits for somebody to write to it.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            raise MissingMember("file is missing", member=self.label) from None
        except OSError as error:
            reason = f"file cannot be opened: {error.strerror}"
            raise DecodeError(reason, member=self.label) from error
        except ValueError as error:  # a NUL byte in the name
            raise DecodeError(f"file cannot be opened: {error}", member=self.label) from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise DecodeError("not a regular file", member=self.label)
            size = status.st_size - self.offset if self.size is None else self.size
            if size > MAX_SIZE:
                raise DecodeError(f"{size:,} bytes do not fit into a shard", member=self.label)
            data = os.pread(descriptor, size, self.offset)
            while len(data) < size:  # one read brings at most 2 GiB
                more = os.pread(descriptor, size - len(data), self.offset + len(data))
                if not more:
                    raise DecodeError("file ends too early", member=self.label)
                data += more
            return data
        except OSError as error:
            reason = f"file cannot be read: {error.strerror}"
            raise DecodeError(reason, member=self.label) from error
        finally:
            os.close(descriptor)

    @property
    def label(self) -> str:
        return printable(self.name or str(self.path))


@dataclass(frozen=True, slots=True)
class RawImage:
    """One image of a sample, and what stands before its format in its member's extension.

    `prefix=""` gives `KEY.jpg`, `prefix="1"` gives `KEY.1.jpg`.
    """

    blob: Blob
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class RawSample:
    """One input as a reader found it.

    Attributes:
        source: where it came from; stands in the index.
        images: in order.
        caption: plain text, or where to read it.
        record: metadata and conversations as a JSON object, or where to read them.
        others: further members as (extension, bytes), kept as they are.
    """

    source: str
    images: tuple[RawImage, ...] = ()
    caption: Blob | str | None = None
    record: Blob | Mapping[str, Any] | None = None
    others: tuple[tuple[str, Blob], ...] = ()


@dataclass(frozen=True, slots=True)
class Reject:
    """An input that does not make it into the dataset, as a line of `rejects.jsonl`.

    Attributes:
        source: where it came from.
        reason: why, for a person.
        error: class of the exception.
        file: the file at fault, where it is another than the source.
    """

    source: str
    reason: str
    error: str
    file: str = ""


class InputCount:
    """Counts inputs and keeps a digest of what they are: names, inline texts and records.

    What lies in the files they name does not enter, so that counting reads none of them.
    """

    def __init__(self) -> None:
        self.number = 0
        self._hash = hashlib.sha256()

    def add(self, taken: RawSample | Reject) -> None:
        """Count one more."""
        self.number += 1
        if isinstance(taken, Reject):
            parts: list[Any] = [taken.source, taken.reason]
        else:
            inline = [p.label if isinstance(p, Blob) else p for p in (taken.caption, taken.record)]
            names = [image.blob.label for image in taken.images]
            parts = [taken.source, *names, *inline, *(blob.label for _, blob in taken.others)]
        try:
            text = json.dumps(parts)
        except RecursionError:  # will be rejected
            text = taken.source
        self._hash.update(text.encode() + b"\n")

    @property
    def digest(self) -> str:
        """sha256, in hex, of all inputs so far."""
        return self._hash.hexdigest()


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What a reader may be told.

    Attributes:
        image_root: folder that relative image paths start from; the reader's own choice if None.
    """

    image_root: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """What lies at a path, for messages: counts of files by extension, and the first few names."""

    counts: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        kinds = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))[:6]
        return ", ".join(f"{count:,} {ext or 'without extension'}" for ext, count in kinds) or (
            "nothing"
        )


def look_at(raw: Path, *, most: int = 20_000) -> Found:
    """Count the files at `raw` by extension, looking at no more than `most` of them."""
    if raw.is_file():
        return Found(counts={raw.suffix.lower(): 1})
    counts: dict[str, int] = {}
    seen = 0
    for _, folders, files in os.walk(raw, followlinks=True):
        folders.sort()
        for name in files:
            suffix = Path(name).suffix.lower()
            counts[suffix] = counts.get(suffix, 0) + 1
            seen += 1
        if seen >= most:
            break
    return Found(counts=counts)
