"""Files of an unfinished conversion: arrays, one of them preallocated, and a journal.

The journal says how far each array goes after each shard, so that the same command can finish it.
"""

from __future__ import annotations

import errno
import io
import logging
import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.convert.chunk import ArrayChunk
from datapipe.decode.spec import ImageSpec
from datapipe.index.dataset import Dataset
from datapipe.index.files.block_checksums import SUMS
from datapipe.index.files.crc32 import prefix_sums
from datapipe.index.files.journal_files import JournalFiles
from datapipe.index.files.npy import HEADER, NpyFile, header
from datapipe.index.files.sealed_json import unseal_lines
from datapipe.index.manifest import Shard
from datapipe.index.parquet import file_sha256
from datapipe.pack.input.raw_sample import Reject
from datapipe.pack.journal import same_options
from datapipe.pack.rejects import RejectCounts
from datapipe.store.arrays import (
    CHECKED,
    IMAGE_CRC32,
    IMAGE_OFFSETS,
    IMAGE_PLACEMENT,
    IMAGES,
    LABELS,
    TEXTS,
    TOKEN_OFFSETS,
    TOKENS,
)
from datapipe.workers.ray_tasks import Stored

logger = logging.getLogger(__name__)

_JOURNAL = "convert.jsonl"
_REJECTS = "convert-rejects.jsonl"

ArrayEnds = dict[str, tuple[int, int]]
"""Of each file: its items, and the checksum of their bytes."""

_NOT_KNOWN_HERE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_OF_IMAGES = (IMAGE_CRC32, IMAGE_PLACEMENT, IMAGE_OFFSETS)
_OF_TOKENS = (TOKENS, LABELS, TOKEN_OFFSETS)
_OFFSETS = {IMAGE_OFFSETS: IMAGE_CRC32, TOKEN_OFFSETS: TOKENS}  # and the file of their items
_KINDS: dict[str, tuple[str, tuple[int, ...]]] = {TEXTS: ("|u1", ()), **CHECKED}


def array_bytes(dataset: Dataset, spec: ImageSpec | None) -> int:
    """Return the bytes that the arrays of a dataset take; without `spec`, those of its texts."""
    columns = dataset.columns
    if spec is None:
        return int(columns.member_size[:].sum())
    images = len(columns.image_width) * 3 * spec.height * spec.width
    return images + int(columns.text_bytes[:].sum())


def take_back(out: Path, work: Path) -> None:
    """Move back what a conversion had put in place when it was killed, before its manifest was."""
    for name in (*_KINDS, IMAGES, SUMS):
        if (out / name).exists():
            (out / name).replace(work / name)
    for path in out.glob("part-*.parquet"):
        path.replace(work / path.name)


class ArrayFiles:
    """The files of a dataset of arrays while they are written, of a fixed number of images.

    `size` is (height, width) of images, None where there are none. `noted` is what `sync` returned,
    to continue there, and empty for new files.
    """

    def __init__(
        self,
        folder: Path,
        *,
        size: tuple[int, int] | None,
        images: int,
        tokens: bool,
        noted: ArrayEnds,
    ) -> None:
        self._row = None if size is None else (*size, 3)
        names = (TEXTS, *(() if size is None else _OF_IMAGES), *(_OF_TOKENS if tokens else ()))
        self._images = -1
        self._files: dict[str, NpyFile] = {}
        with ExitStack() as opened:
            for name in names:
                length, checksum = noted.get(name, (0, 0))
                # The last offset is the number of items in the other file.
                end, _ = noted.get(_OFFSETS.get(name, ""), (0, 0))
                file = NpyFile(folder / name, *_KINDS[name], length=length, end=end, crc32=checksum)
                self._files[name] = opened.enter_context(closing(file))
                if name in _OFFSETS and not noted:
                    file.append(np.zeros(1, np.int64))
            if self._row is not None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._images = os.open(folder / IMAGES, flags, 0o666)
                opened.callback(os.close, self._images)
                _reserve(self._images, HEADER + images * math.prod(self._row))
            self._opened = opened.pop_all()

    @property
    def images(self) -> int:
        """Number of images so far."""
        return self._files[IMAGE_CRC32].length

    @property
    def texts(self) -> int:
        """Bytes of texts so far."""
        return self._files[TEXTS].length

    def put(self, images: Stored[int]) -> None:
        """Write images, uint8 [n, height, width, 3], from a number on; from any thread."""
        _put(self._images, images)

    def append(self, made: ArrayChunk) -> None:
        """Add the samples of a chunk, apart from pixels."""
        files = self._files
        text = b"".join(data for texts in made.texts for _, data in texts)
        files[TEXTS].append(np.frombuffer(text, np.uint8))
        if self._row is not None:
            files[IMAGE_CRC32].append(np.array(made.sums, np.uint32))
            files[IMAGE_PLACEMENT].append(np.array(made.placements, np.float64).reshape(-1, 4))
            files[IMAGE_OFFSETS].append_ends(np.array(made.counts, np.int64))
        if TOKENS in files:
            for name, values in ((TOKENS, made.tokens), (LABELS, made.labels)):
                files[name].append(np.concatenate([np.zeros(0, np.int32), *values]))
            files[TOKEN_OFFSETS].append_ends(np.array([len(t) for t in made.tokens], np.int64))

    def sync(self) -> ArrayEnds:
        """Make all of it durable; return how far each file goes."""
        for file in self._files.values():
            file.sync()
        if self._row is not None:
            os.fdatasync(self._images)
        return {name: (file.length, file.crc32 or 0) for name, file in self._files.items()}

    def finish(self) -> list[str]:
        """Close the files, each as long as what it holds; return their names."""
        names = list(self._files)
        if self._row is not None:
            os.ftruncate(self._images, HEADER + self.images * math.prod(self._row))
            os.pwrite(self._images, header("|u1", self.images, self._row), 0)
            os.fsync(self._images)
            names.append(IMAGES)
        self.close()
        return names

    def close(self) -> None:
        """Close the files as they are, unless they are closed."""
        self._opened.close()


def image_writer(path: Path) -> Callable[[Stored[int]], None]:
    """Return the function of a task that writes images, from a number on, and makes them durable.

    OSError if the file is not seen there.
    """
    os.stat(path)

    def write(images: Stored[int]) -> None:
        with io.FileIO(path, "r+") as file:
            _put(file.fileno(), images)
            os.fdatasync(file.fileno())

    return write


def _put(descriptor: int, images: Stored[int]) -> None:
    first, pixels = images
    data, start = pixels.reshape(-1).data, HEADER + first * pixels[:1].size
    done = 0
    while done < len(data):  # one write takes at most 2 GiB
        done += os.pwrite(descriptor, data[done:], start + done)


def _reserve(descriptor: int, size: int) -> None:
    """Reserve the bytes of all images at once, so that they are together and cannot run out."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in _NOT_KNOWN_HERE:
            raise
        os.ftruncate(descriptor, size)


class ConvertJournal:
    """A file with a line for each finished shard; `PackError` if started with other options."""

    def __init__(self, work: Path, options: dict[str, Any], out: Path) -> None:
        self._work = work
        path = work / _JOURNAL
        content = path.read_bytes() if path.exists() else b""
        entries, ends = unseal_lines(content)
        if entries:
            same_options(out, entries[0]["options"], options)
        done, changed = _count_whole(work, entries[1:])
        if changed is None and len(content) > sum(ends[-1:]):
            changed = path
        if changed is not None:
            logger.warning(
                "%s is damaged; converting everything after shard %d again",
                *(changed, done),
            )
        nothing = {"noted": {}, "inputs": 0, "rejected": 0, "rejects": (0, 0)}
        last: dict[str, Any] = entries[done] if done else nothing
        self.parts = [Shard(**entry["part"]) for entry in entries[1 : 1 + done]]  # that are done
        self.noted: ArrayEnds = last["noted"]  # how far each array goes then
        self.inputs: int = last["inputs"]  # samples looked at so far
        self.refused = RejectCounts(number=last["rejected"])  # those of them that were refused
        rejects_bytes, rejects_crc32 = last["rejects"]
        self._files = JournalFiles(
            work / _REJECTS,
            path,
            rejects_size=rejects_bytes,
            rejects_crc32=rejects_crc32,
            journal_size=ends[done] if entries else 0,
            head=None if entries else {"options": options},
        )

    def reject(self, reject: Reject) -> None:
        self._files.reject(reject.line())
        self.refused.add(reject)

    def rejects(self) -> bytes:
        self._files.sync_rejects()
        return (self._work / _REJECTS).read_bytes()

    def commit(self, part: Shard, noted: ArrayEnds) -> None:
        entry = {
            "part": asdict(part),
            "noted": noted,
            "inputs": self.inputs,
            "rejected": self.refused.number,
            "rejects": [self._files.rejects_size, self._files.rejects_crc32],
        }
        self._files.note(entry)
        self.parts.append(part)

    def close(self) -> None:
        self._files.close()


def _count_whole(work: Path, entries: Sequence[dict[str, Any]]) -> tuple[int, Path | None]:
    """Return how many shards, from the first on, are as noted, and the file that differs next.

    Images have checksums of their own, and are compared when they are read.
    """
    changed: dict[int, Path] = {}  # by shard

    def compare(path: Path, ends: list[int], expected: list[int], start: int = 0) -> None:
        sums = prefix_sums(path, ends, start=start)
        wrong = (number for number, noted in enumerate(expected) if sums[number] != noted)
        if (first := next(wrong, None)) is not None:
            changed.setdefault(first, path)

    for name in entries[0]["noted"] if entries else ():
        item = np.dtype(_KINDS[name]).itemsize
        noted = [entry["noted"][name] for entry in entries]
        compare(work / name, [item * n for n, _ in noted], [crc for _, crc in noted], HEADER)
    for number, entry in enumerate(entries):
        index = work / str(entry["part"]["index"])
        if not index.exists() or file_sha256(index) != entry["part"]["index_sha256"]:
            changed.setdefault(number, index)
            break
    rejects = [entry["rejects"] for entry in entries]
    compare(work / _REJECTS, [end for end, _ in rejects], [crc for _, crc in rejects])
    done = min(changed, default=len(entries))
    return done, changed.get(done)
