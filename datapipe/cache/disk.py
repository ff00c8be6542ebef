"""Entries on a disk of this machine: shared by its processes, valid after a restart.

The entries of an `EntryLayout` are in one sparse file. A second file has the mark of each, see
`checksum_mark`. There is no lock, since processes that write the same entry write the same bytes. A
crash in the middle leaves no mark, or a wrong one.
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
import weakref
from contextlib import suppress
from functools import partial
from os import pwrite
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.array_types import Bools, UInt8, UInt64
from datapipe.cache.entries import checksum_mark
from datapipe.cache.layout import EntryLayout
from datapipe.cache.tier import Tier, TierRequest, Use, Uses
from datapipe.index.files.lock import try_lock

logger = logging.getLogger(__name__)

VERSION = 1
"""Version of the entries and files; those of another version are never found."""

_LEFT_FREE = 0.1  # of the free space, if no size was given
_ENTRIES, _WORDS, _ABOUT = "entries", "words", "about.json"


class DiskTier(Tier):
    """Entries in a folder. If it cannot be written, nothing more is kept, with one warning.

    `covered` counts the samples of faster tiers, as in `Tier`. If `broken`, it keeps nothing more,
    without a warning.
    `layout` has no entries if the folder cannot be used at all.
    """

    name = "disk"

    def __init__(
        self, folder: Path, layout: EntryLayout, covered: int | None = 0, *, broken: bool = False
    ) -> None:
        self.folder = folder
        self.layout = layout
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
        if covered is not None:
            self.covered = max(covered, self.layout.kept)
            self.expected = (self.covered - covered) / max(layout.count, 1)

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # `open_folder` removes no folder that is locked; the lock ends with its process.
        fcntl.flock(self._open_file(self.folder, os.O_RDONLY), fcntl.LOCK_SH)
        os.utime(self.folder)
        self._descriptor = self._open_file(self.folder / _ENTRIES, os.O_RDWR | os.O_CREAT)
        self._words = _map_words(self.folder / _WORDS, max(self.layout.kept, 1))

    def _open_file(self, path: Path, flags: int) -> int:
        descriptor = os.open(path, flags, 0o666)
        weakref.finalize(self, os.close, descriptor).atexit = False
        return descriptor

    def __reduce__(self) -> tuple[object, ...]:
        return partial(DiskTier, broken=self._broken), (self.folder.absolute(), self.layout)

    def describe(self, form: str) -> str:
        return f"{self.layout.describe(form)} in {self.folder}, where {self.present:,} are"

    def holds(self, uses: Uses) -> Bools:
        return self.layout.marked(uses.positions, self._words)[1]

    def get(self, use: Use) -> UInt8 | None:
        index = self.layout.index(use.position)
        mark = int(self._words[index]) if index >= 0 else 0
        if not mark:
            return None
        start, stop = self.layout.offsets[index : index + 2].tolist()
        try:
            data: UInt8 = np.empty(stop - start, np.uint8)
            data = data[: os.preadv(self._descriptor, [data.data], start)]
        except OSError as error:
            self._give_up(error)
            return None
        if len(data) == stop - start and checksum_mark(data) == mark:
            return data
        self._words[index] = 0
        logger.warning("an entry of the cache in %s is damaged; decoding it again", self.folder)
        return None

    def room(self, use: Use, size: int) -> UInt8 | None:
        kept = not self._broken and self.layout.index(use.position) >= 0
        return np.empty(size, np.uint8) if kept else None

    def put(self, use: Use, entry: UInt8) -> bool:
        index = self.layout.index(use.position)
        if self._broken or index < 0 or self._words[index]:
            return False
        start, stop = self.layout.offsets[index : index + 2].tolist()
        padded = np.zeros(stop - start, np.uint8)
        padded[: len(entry)] = entry
        try:
            if pwrite(self._descriptor, padded.tobytes(), start) < len(padded):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._give_up(error)
            return False
        self._words[index] = checksum_mark(padded)
        return True

    @property
    def present(self) -> int:
        """Number of entries that were written."""
        return int(np.count_nonzero(self._words[: self.layout.kept]))

    def _give_up(self, error: OSError) -> None:
        if not self._broken:
            self._broken = True
            logger.warning(
                "nothing more is cached in %s: %s; training continues without it. Make room "
                "there, or give CacheSpec(disk=...) another folder",
                *(self.folder, error.strerror or error),
            )


def _map_words(path: Path, count: int) -> UInt64:
    is_new = not path.exists()
    path.touch()
    # Not to append: libc refuses to emulate `fallocate` then, where a file system has none (NFS).
    with path.open("r+b") as file:
        if os.fstat(file.fileno()).st_size < 8 * count:
            if not is_new:
                logger.info("%s belongs to a smaller cache, or was cut off; adding entries", path)
            # Without space for it, a later write through the map would kill the process.
            os.posix_fallocate(file.fileno(), 0, 8 * count)
        return np.frombuffer(mmap.mmap(file.fileno(), 8 * count), np.uint64)


def disk_tier(request: TierRequest) -> DiskTier | None:
    """Make the tier of a folder on a disk, if one is asked for; it may keep nothing."""
    spec, dataset, sizes = request.spec, request.dataset, request.sizes
    if spec.disk is None:
        return None
    about = {
        "dataset": dataset.fingerprint,
        "samples": len(dataset),
        "keep": sizes.form,
        "what": sizes.identity,
    }
    if any(frames := [part.max_frames for part in dataset.parts]):
        about["frames"] = frames
    limit = None if spec.disk_size is None else int(spec.disk_size)
    folder, room = open_folder(Path(spec.disk), about, limit)
    return DiskTier(folder, EntryLayout(len(dataset), sizes, room), request.covered)


def open_folder(root: Path, about: dict[str, Any], limit: int | None) -> tuple[Path, int]:
    """Return the folder of one kind of entries, and how many bytes they may take.

    The number is 0 if the folder cannot be made. Folders that no process uses are removed, least
    recently used first, until the others leave half of the limit. `about` is all that the entries
    depend on, beside their version. `limit` is the most bytes that `root` may hold; None takes the
    free space, less a tenth.
    """
    about = {"version": VERSION, **about}
    folder = root / hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
    try:
        root.mkdir(parents=True, exist_ok=True)
        room = _make_room(folder, limit)
        folder.mkdir(exist_ok=True)
        if not (folder / _ABOUT).exists():  # a full disk may hold it already
            content = json.dumps({"format": "datapipe cache", **about}, indent=1)
            (folder / _ABOUT).write_text(f"{content}\n", "utf-8")  # for people
    except OSError as error:
        logger.debug("%s: %s", root, error)  # opening the tier warns of it
        return folder, 0
    return folder, room


def _make_room(own: Path, limit: int | None) -> int:
    own_bytes = _size_of(own)
    if limit is None:
        return int((shutil.disk_usage(own.parent).free + own_bytes) * (1 - _LEFT_FREE))
    others = []
    for path in own.parent.iterdir():
        with suppress(OSError):  # not ours, or just removed
            if path != own and (path / _ABOUT).is_file():
                others.append((path.stat().st_mtime, _size_of(path), path))
    taken = sum(size for _, size, _ in others)
    for _, size, path in sorted(others):
        if taken + own_bytes <= limit // 2:
            break
        if _remove_unused(path):
            taken -= size
    return max(0, limit - taken)


def _size_of(folder: Path) -> int:
    entries = folder / _ENTRIES
    return 512 * entries.stat().st_blocks if entries.exists() else 0


def _remove_unused(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        if not try_lock(descriptor):
            return False
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
    logger.info("removed the cache in %s, which was used longest ago", folder)
    return True
