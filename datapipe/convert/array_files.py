"""Files of an unfinished conversion: arrays, one of them preallocated, and a journal.

The journal says how far each array goes after each shard, so that the same command can finish it.
"""

from __future__ import annotations

import errno
import io
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.convert.chunk import ArrayChunk
from datapipe.decode.spec import ImageSpec
from datapipe.index.dataset import Dataset
from datapipe.index.files.block_checksums import SUMS
from datapipe.index.files.npy import HEADER, NpyFile, header
from datapipe.index.manifest import Shard
from datapipe.pack.journal import (
    ShardJournal,
    changed_file,
    changed_index,
    read_lines,
    same_options,
)
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


class ConvertJournal(ShardJournal):
    """Journal of a conversion; `PackError` if it was started with other options.

    `parts` are the shards that are done, `noted` says how far each array goes then, and `inputs`
    counts the samples looked at so far. An image takes `row` bytes, 0 where there are none.
    """

    def __init__(self, work: Path, options: dict[str, Any], out: Path, row: int) -> None:
        found = read_lines(work / _JOURNAL)
        if found.head:
            same_options(out, found.head["options"], options)
        done = found.count_whole(_faults(work, found.entries, row), "converting")
        self.parts = [Shard(**entry["part"]) for entry in found.entries[:done]]
        nothing = {"noted": {}, "inputs": 0, "rejected": 0, "rejects": (0, 0)}
        last: dict[str, Any] = found.entries[done - 1] if done else nothing
        self.noted: ArrayEnds = last["noted"]
        self.inputs: int = last["inputs"]
        rejects = last["rejected"], *last["rejects"]
        super().__init__(out, found, done, {"options": options}, work / _REJECTS, rejects)

    def commit(self, part: Shard, noted: ArrayEnds) -> None:
        entry = {
            "part": asdict(part),
            "noted": noted,
            "inputs": self.inputs,
            "rejected": self.rejects.number,
            "rejects": [self.rejects_bytes, self.rejects_crc32],
        }
        self.note(entry)
        self.parts.append(part)


def _faults(work: Path, entries: Sequence[dict[str, Any]], row: int) -> Iterator[Path | None]:
    """Yield for each shard a file that is not as it was noted, or None.

    Images have checksums of their own, and are compared when they are read; here their size is.
    """
    images = work / IMAGES
    held = images.stat().st_size if images.exists() else 0
    faults = [changed_file(work / _REJECTS, [entry["rejects"] for entry in entries])]
    for name in entries[0]["noted"] if entries else ():
        item = np.dtype(_KINDS[name]).itemsize
        noted = [(item * length, crc) for length, crc in (e["noted"][name] for e in entries)]
        faults.append(changed_file(work / name, noted, start=HEADER))
    for entry, *files in zip(entries, *faults, strict=True):
        needed = HEADER + row * entry["noted"][IMAGE_CRC32][0] if row else 0
        files = [*files, images if held < needed else None]
        yield changed_index(work, Shard(**entry["part"])) or next(filter(None, files), None)
