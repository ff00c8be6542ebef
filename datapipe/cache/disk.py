"""Entries on a disk of this machine: shared by its processes, valid after a restart.

The entries of an `EntryLayout` are in one sparse file. A second file has a word for each: its
checksum, and whether it was written. There is no lock, since processes that write the same entry
write the same bytes. A crash in the middle leaves a word of zeros or a wrong checksum.
"""

from __future__ import annotations

import copy
import errno
import fcntl
import hashlib
import json
import logging
import mmap
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from os import pwrite
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.array_types import Bools, Int64, UInt8, UInt64
from datapipe.cache.layout import EntryLayout, Use
from datapipe.index.files.crc32 import crc32

logger = logging.getLogger(__name__)

_VERSION = 1
_WRITTEN = 1 << 32
_LEFT_FREE = 0.1  # of the free space, if no size was given
_ENTRIES, _WORDS, _ABOUT = "entries", "words", "about.json"


class DiskTier:
    """Entries in a folder. If it cannot be written, nothing more is kept, with one warning.

    Args:
        folder: for the entries of this layout alone.
        broken: keep nothing more, without a warning.

    Attributes:
        layout: as given; without entries if the folder cannot be used at all.
        corrupt: number of damaged entries that were found.
    """

    def __init__(self, folder: Path, layout: EntryLayout, *, broken: bool = False) -> None:
        self.folder = folder
        self.layout = layout
        self.corrupt = 0
        self._broken = broken
        try:
            self._open()
        except OSError as error:
            self._give_up(error)
            self.layout = copy.copy(layout)
            self.layout.kept = self.layout.bytes = 0
            self._words = np.zeros(1, np.uint64)
        else:
            if not layout.kept:
                self._give_up(OSError("there is no room for a single entry"))

    def _open(self) -> None:
        folder = self.folder
        folder.mkdir(parents=True, exist_ok=True)
        # `make_room` removes no folder that is locked; the lock ends with its process.
        self._use = os.open(folder, os.O_RDONLY)
        fcntl.flock(self._use, fcntl.LOCK_SH)
        os.utime(folder)
        self._descriptor = os.open(folder / _ENTRIES, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._words = _map_words(folder / _WORDS, max(self.layout.kept, 1))

    def __reduce__(self) -> tuple[object, ...]:
        return partial(DiskTier, broken=self._broken), (self.folder.absolute(), self.layout)

    def __del__(self) -> None:
        for descriptor in (getattr(self, "_use", None), getattr(self, "_descriptor", None)):
            if descriptor is not None:
                os.close(descriptor)

    def holds(self, samples: Int64) -> Bools:
        """Return whether the entry of each sample was written: bool [n]."""
        indices = self.layout.places(samples)
        held = indices >= 0
        held[held] = self._words[indices[held]] != 0
        return held

    def find(self, use: Use) -> UInt8 | None:
        """Return the entry of a sample, if it is there and whole, for reading."""
        index = use.disk
        word = int(self._words[index]) if index >= 0 else 0
        if not word:
            return None
        start, stop = self.layout.offsets[index : index + 2].tolist()
        try:
            data: UInt8 = np.empty(stop - start, np.uint8)
            data = data[: os.preadv(self._descriptor, [data.data], start)]
        except OSError as error:
            self._give_up(error)
            return None
        if len(data) == stop - start and crc32(data) | _WRITTEN == word:
            return data
        self.corrupt += 1
        self._words[index] = 0
        logger.warning("an entry of the cache in %s is damaged; it is made anew", self.folder)
        return None

    def wants(self, use: Use) -> bool:
        """Return whether the entry of a sample would be kept."""
        return not self._broken and use.disk >= 0

    def keep(self, use: Use, entry: UInt8) -> None:
        """Write an entry. If the disk is full or fails, this process writes no more."""
        index = use.disk
        if self._broken or index < 0:
            return
        start, stop = self.layout.offsets[index : index + 2].tolist()
        padded = np.zeros(stop - start, np.uint8)
        padded[: len(entry)] = entry
        try:
            if pwrite(self._descriptor, padded.tobytes(), start) < len(padded):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._give_up(error)
            return
        self._words[index] = crc32(padded) | _WRITTEN

    @property
    def present(self) -> int:
        """Number of entries that were written."""
        return int(np.count_nonzero(self._words[: self.layout.kept]))

    def _give_up(self, error: OSError) -> None:
        if not self._broken:
            self._broken = True
            logger.warning(
                "nothing more is cached in %s: %s; training goes on without. Make room there, or "
                "give CacheSpec(disk=...) another folder",
                *(self.folder, error.strerror or error),
            )


def _map_words(path: Path, count: int) -> UInt64:
    is_new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if os.fstat(descriptor).st_size < 8 * count:
            if not is_new:
                logger.info("%s is of a smaller cache, or was cut off; entries are added", path)
            # Without space for it, a later write through the map would kill the process.
            os.posix_fallocate(descriptor, 0, 8 * count)
        return np.frombuffer(mmap.mmap(descriptor, 8 * count), np.uint64)
    finally:
        os.close(descriptor)


def open_disk(
    root: Path, about: dict[str, Any], limit: int | None, layout: Callable[[int], EntryLayout]
) -> DiskTier:
    """Open the tier of one kind of entries in a folder for many kinds; it may keep nothing.

    Args:
        root: the folder; made if it is missing.
        about: all that the entries depend on.
        limit: most bytes that the folder may hold; None takes the free space, less a tenth.
        layout: returns the layout of the entries for a number of bytes.
    """
    name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
    try:
        room = make_room(root, name, limit)
        write_about(root / name, about)
    except OSError as error:
        logger.debug("%s: %s", root, error)  # opening the tier warns of it
        room = 0
    return DiskTier(root / name, layout(room))


def make_room(root: Path, own: str, limit: int | None) -> int:
    """Return the bytes that the entries in `root / own` may take.

    Folders that no process uses are removed, least recently used first, until the others leave half
    of the limit.

    Raises:
        OSError: `root` cannot be made or read.
    """
    root.mkdir(parents=True, exist_ok=True)
    others = [p for p in root.iterdir() if p.name != own and os.path.exists(p / _ABOUT)]
    own_bytes = _size_of(root / own)
    if limit is None:
        return int((shutil.disk_usage(root).free + own_bytes) * (1 - _LEFT_FREE))
    for path in sorted(others, key=_last_use):
        if sum(map(_size_of, others)) + own_bytes <= limit // 2:
            break
        if _remove_unused(path):
            others.remove(path)
    return max(0, limit - sum(map(_size_of, others)))


def write_about(folder: Path, about: dict[str, Any]) -> None:
    """Write a description of the entries in a folder, for people.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    about = {"format": "datapipe cache", "version": _VERSION, **about}
    content = (json.dumps(about, indent=1) + "\n").encode()
    path = folder / _ABOUT
    if path.exists():
        if path.read_bytes() == content:
            return  # a full disk may hold it already
        logger.info("%s is damaged or of another version; it is written anew", path)
    path.write_bytes(content)


def _size_of(folder: Path) -> int:
    try:
        return 512 * (folder / _ENTRIES).stat().st_blocks
    except OSError:
        return 0


def _last_use(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return time.time()


def _remove_unused(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    logger.info("removed the cache in %s, which was used longest ago", folder)
    return True
