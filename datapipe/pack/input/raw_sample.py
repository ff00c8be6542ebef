"""Raw samples as readers yield them; a worker reads their bytes later."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unicodedata import normalize

from datapipe.errors import DecodeError, MissingMember
from datapipe.index.files.crc32 import crc32
from datapipe.index.media import is_video
from datapipe.pack.notes import Notes
from datapipe.pack.writers.ustar import MAX_SIZE


def as_it_lies(path: str) -> str | None:
    """Return the path of a file that is not at `path`; None where it is nowhere.

    Tried are both normal forms of Unicode, as macOS takes accents off their letters, and the
    extension in small and in capital letters, as cameras and Windows write `IMG_1.JPG`.
    """
    existing = ""
    if not path.isascii():  # what is there keeps its spelling: it may be in another form
        existing = os.path.dirname(path)
        while existing and not os.path.isdir(existing):
            existing = os.path.dirname(existing)
    stem, ext = os.path.splitext(path[len(existing) :])
    others = [
        f"{existing}{form}{end}"
        for form in dict.fromkeys((stem, normalize("NFC", stem), normalize("NFD", stem)))
        for end in dict.fromkeys((ext, ext.lower(), ext.upper()))
    ]
    return next((other for other in others[1:] if os.path.isfile(other)), None)


def printable(name: str) -> str:
    """Return a name or a text in which what UTF-8 does not have is written as escapes."""
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode()


class ByteRange(io.RawIOBase):
    """Stretch of an open file, as a file of its own."""

    def __init__(self, descriptor: int, offset: int, size: int) -> None:
        self._descriptor, self._offset, self._size = descriptor, offset, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def readinto(self, buffer: Any) -> int:
        left = max(self._size - self._at, 0)
        view = memoryview(buffer)[:left]
        done = os.preadv(self._descriptor, [view], self._offset + self._at)
        self._at += done
        return done


# Named tuples, not dataclasses: millions are made, and sent to the processes that read them.
class Blob(NamedTuple):
    """Bytes of one file, or of a stretch of it, read when they are needed."""

    path: str | Path
    offset: int = 0  # first byte
    size: int | None = None  # bytes, None up to the end of the file
    name: str = ""  # what a person would call it in a message

    def open(self, most: int | None = MAX_SIZE) -> tuple[int, int]:
        """Return a descriptor, for the caller to close, and how many bytes to read from `offset`.

        A file that is not there is looked for in other spellings of its name, before MissingMember
        is raised; DecodeError if it cannot be read, or has more than `most` bytes.
        """
        try:
            try:
                descriptor = _open(self.path)
            except FileNotFoundError:
                descriptor = _open(as_it_lies(os.fspath(self.path)) or self.path)
        except FileNotFoundError:
            raise MissingMember("file is missing", member=self.label) from None
        except OSError as error:
            reason = f"file cannot be opened: {error.strerror}"
            raise DecodeError(reason, member=self.label) from error
        except ValueError as error:  # a NUL or a lone surrogate in the name
            reason = "file cannot be opened: no file can have this name"
            raise DecodeError(reason, member=self.label) from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise DecodeError("not a regular file", member=self.label)
            size = status.st_size - self.offset if self.size is None else self.size
            if most is not None and size > most:
                raise DecodeError(f"{size:,} bytes do not fit into a shard", member=self.label)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, max(size, 0)

    @contextmanager
    def file(self) -> Iterator[ByteRange]:
        """Open the bytes as a file, whatever their number; errors are those of `open`."""
        descriptor, size = self.open(None)
        try:
            yield ByteRange(descriptor, self.offset, size)
        finally:
            os.close(descriptor)

    def read(self) -> bytes:
        """Return the bytes; errors are those of `read_into`."""
        return bytes(self.read_into(lambda size: memoryview(bytearray(size))))

    def read_into(self, take: Callable[[int], memoryview]) -> memoryview:
        """Read the bytes into the memory that `take` returns for their number; return it.

        Errors are those of `open`, and DecodeError if the file ends too early.
        """
        descriptor, size = self.open()
        try:
            view, done = take(size), 0
            while done < size:  # one read brings at most 2 GiB
                more = os.preadv(descriptor, [view[done:]], self.offset + done)
                if not more:
                    raise DecodeError("file ends too early", member=self.label)
                done += more
            return view
        except OSError as error:
            reason = f"file cannot be read: {error.strerror}"
            raise DecodeError(reason, member=self.label) from error
        finally:
            os.close(descriptor)

    @property
    def label(self) -> str:
        return printable(self.name or str(self.path))


def _open(path: str | Path) -> int:
    # Without O_NONBLOCK, opening a named pipe waits for a writer.
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


class InlineBlob(NamedTuple):
    """Bytes that a reader already holds: a cell of a table, an image inside a JSON record."""

    data: bytes
    name: str  # what a person would call them in a message

    def read(self) -> bytes:
        return self.data

    @contextmanager
    def file(self) -> Iterator[io.BytesIO]:
        yield io.BytesIO(self.data)

    @property
    def label(self) -> str:
        return printable(self.name)


class NamedTexts(NamedTuple):
    """Texts with names of their own, which count unless the JSON beside them is the text."""

    # As (extension, bytes): a caption, or a question and its answer
    members: tuple[tuple[str, Blob | InlineBlob], ...]
    unclear: str = ""  # why they are neither; empty where they are


class RawImage(NamedTuple):
    """One image of a sample, and what stands before its format in its member's extension.

    `prefix=""` gives `KEY.jpg`, `prefix="1"` gives `KEY.1.jpg`.
    """

    blob: Blob | InlineBlob
    prefix: str = ""

    @property
    def blobs(self) -> tuple[Blob | InlineBlob, ...]:
        return (self.blob,)


class RawVideo(NamedTuple):
    """One video of a sample, whose frames become images."""

    blobs: tuple[Blob | InlineBlob, ...]  # its file; or its frames, as images in order
    name: str  # what the record calls it
    # Frames per second of frames that are images; 0 if that is not known, None of a file
    fps: float | None = None


Picture = RawImage | RawVideo


def raw_picture(blob: Blob | InlineBlob) -> Picture:
    """Return a file as an image or a video, by its name."""
    return RawVideo((blob,), blob.label) if is_video(blob.name) else RawImage(blob)


class RawSample(NamedTuple):
    """One input as a reader found it."""

    source: str  # where it came from; stands in the index
    images: tuple[Picture, ...] = ()  # in order
    # Plain text, or where to read it; or texts that the record decides on
    caption: Blob | InlineBlob | NamedTexts | str | None = None
    # Metadata and conversations as a JSON object, or where to read them
    record: Blob | InlineBlob | Mapping[str, Any] | None = None
    # Further members as (extension, bytes), kept as they are
    others: tuple[tuple[str, Blob | InlineBlob], ...] = ()
    key: str = ""  # value that `--key-from` asks for

    @property
    def pictures(self) -> tuple[Blob | InlineBlob, ...]:
        return tuple(blob for image in self.images for blob in image.blobs)

    @property
    def parts(self) -> tuple[object, ...]:
        """Caption, record and further members: all but the images; None of what it lacks."""
        texts: tuple[object, ...] = (self.caption,)
        if isinstance(self.caption, NamedTexts):
            texts = tuple(blob for _, blob in self.caption.members)
        return (*texts, self.record, *(blob for _, blob in self.others))


class Reject(NamedTuple):
    """An input that does not make it into the dataset, as a line of `rejects.jsonl`."""

    source: str  # origin of the input
    reason: str  # cause, in words
    error: str  # class of the exception
    file: str = ""  # file at fault, if it is not the source

    def line(self) -> bytes:
        """Return the line of `rejects.jsonl`; empty fields are left out."""
        fields = {key: value for key, value in self._asdict().items() if value}
        text = json.dumps(fields, ensure_ascii=False) + "\n"
        return text.encode("utf-8", "backslashreplace")


class RecordSample(NamedTuple):
    """Sample that a record is, or why it is none."""

    sample: Input
    # Fields of images that the sample lacks, each with the map that takes them too, or ""
    unused: tuple[tuple[str, str], ...] = ()


class RawRecord(NamedTuple):
    """Record of a file as its text, from which a worker makes the sample."""

    source: str  # as in `RawSample`
    text: Any
    size: int  # bytes or characters of the text, about
    read: Callable[[str, Any], RecordSample]  # takes source and text; workers get it by pickle


Input = RawSample | Reject
RawInput = Input | RawRecord


def sample_of(found: RawInput) -> RecordSample:
    """Return the sample of an input, whose record is read now if it is still text."""
    if isinstance(found, RawRecord):
        return found.read(found.source, found.text)
    return RecordSample(found)


def inline_bytes(sample: RawInput) -> int:
    """Return the bytes of data that an input holds in memory."""
    if isinstance(sample, Reject):
        return 0
    if isinstance(sample, RawRecord):
        return sample.size
    blobs = [*sample.pictures, *(blob for _, blob in sample.others)]
    return sum(len(blob.data) for blob in blobs if isinstance(blob, InlineBlob))


def has_video(sample: RawInput) -> bool:
    """Return whether an input has a video whose frames become images."""
    return isinstance(sample, RawSample) and any(isinstance(i, RawVideo) for i in sample.images)


class InputFacts(NamedTuple):
    """Facts of an input that a pack counts and notes; workers find them."""

    digested: bytes  # what enters the digest of all inputs
    paths: tuple[str, ...]  # files that it names, each once
    unused: tuple[tuple[str, str], ...]  # as in `RecordSample`


def facts_of(found: RecordSample) -> InputFacts:
    """Return the facts of an input; no file that it names is read."""
    sample = found.sample
    paths: dict[str, None] = {}
    if isinstance(sample, Reject):
        text = f"{sample.source}\n{sample.reason}\n\n"
    else:
        pictures = sample.pictures
        parts = [sample.source, *map(_digest, pictures)]
        parts += [_digest(blob) for _, blob in sample.others]
        parts += [_digest(p) for p in (sample.caption, sample.record) if p is not None]
        text = "\n".join([*parts, sample.key]) + "\n\n"
        for part in (*pictures, *sample.parts):
            if isinstance(part, Blob):
                paths[os.fspath(part.path)] = None
    return InputFacts(text.encode("utf-8", "surrogatepass"), tuple(paths), found.unused)


class InputCount:
    """Number of inputs and digest of them: of names, inline texts and records.

    The content of the files they name does not enter, so counting reads none of them.
    `saved_bytes` is by how much shrinking made their images smaller.
    """

    def __init__(self) -> None:
        self.number = self.saved_bytes = 0
        self._hash = hashlib.sha256()

    def add(self, facts: InputFacts) -> None:
        self.number += 1
        self._hash.update(facts.digested)

    @property
    def digest(self) -> str:
        """Return the sha256 of all inputs so far, in hex."""
        return self._hash.hexdigest()


def _digest(part: Blob | InlineBlob | NamedTexts | str | Mapping[str, Any]) -> str:
    """Return the text that is hashed of a part: a file's name, else the content."""
    if isinstance(part, NamedTexts):
        return "\n".join(_digest(blob) for _, blob in part.members)
    if isinstance(part, Blob):
        return part.label
    if isinstance(part, InlineBlob):
        return f"{part.label} {len(part.data)} {crc32(part.data):08x}"
    if isinstance(part, str):
        return part
    try:
        return json.dumps(part)
    except (RecursionError, ValueError):
        return ""  # will be rejected


Captions = Literal["first", "all", "join"]
"""Treatment of an image with several captions.

`"all"` gives a sample for each caption, with the image in each; `"first"` keeps the first caption
and counts the others as left out; `"join"` gives one sample whose text is all of them, a line each.
"""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of readers; None leaves the choice to them. `takes` of a reader names its own."""

    image_root: Path | None = None  # folder that relative image paths start from
    # `image_column`, `text_column`: names of the columns of a table
    image_column: str | None = None
    text_column: str | None = None
    # Pattern (`fnmatch`) for paths below the raw folder, of the files that hold records
    include: str | None = None
    # Patterns (`fnmatch`), separated by commas, of loose files and members of tars to leave out
    ignore: str | None = None
    key_from: str | None = None  # field whose value becomes part of the key; None gives ordinals
    map: str | None = None  # which fields are images and turns, as `--map` has it
    # Column that joins a table of texts with one of images, or two as "text_column=image_column"
    join: str | None = None
    captions: Captions | None = None  # as None, "all"
    # Where a reader writes what it decided and left out
    notes: Notes = field(default_factory=Notes, compare=False)
    scratch: Path | None = None  # folder for temporary files of joins; the system's own where None
    videos: bool = False  # whether frames of videos are wanted; else videos are rejected
    deferred: bool = False  # whether records may be left as text to the workers, as `RawRecord`
    # Returns when a tar is here, which may still be on its way; raises `StoreError`
    wait: Callable[[Path], None] = field(default=lambda path: None, compare=False)
