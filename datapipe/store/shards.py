"""Members of samples, read from tar shards at the offsets that the index holds."""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from datapipe.errors import StoreError
from datapipe.index.rows import Member
from datapipe.store.protocol import Store

_MOST_OPEN = 1024  # files, and an eighth of what the process may open
_JOIN = 1 << 16  # members closer than this many bytes are read in one go


class ShardStore(Store):
    """A reader of many shards by offset, for any thread, with a bounded number of open files."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._names = names
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_open = _MOST_OPEN
        if limit != resource.RLIM_INFINITY:
            self._most_open = min(_MOST_OPEN, max(1, limit // 8))
        self._lock = threading.Lock()
        # Shard number -> [descriptor, readers using it now], least recently used first.
        self._open: OrderedDict[int, list[int]] = OrderedDict()

    def __reduce__(self) -> tuple[object, ...]:
        return ShardStore, (self._folder, self._names)

    def name(self, shard: int) -> str:
        return self._names[shard]

    def read(self, shard: int, members: Sequence[Member]) -> list[memoryview]:
        if not members:
            return []
        start = stop = members[0].offset
        needed = _JOIN * len(members)
        for member in members:
            start, stop = min(start, member.offset), max(stop, member.offset + member.size)
            needed += member.size
        entry = self._take(shard)
        try:
            descriptor = entry[0]
            if stop - start <= needed:
                joined = memoryview(self._pread(descriptor, shard, start, stop - start))
                return [joined[m.offset - start : m.offset - start + m.size] for m in members]
            return [memoryview(self._pread(descriptor, shard, m.offset, m.size)) for m in members]
        finally:
            with self._lock:
                entry[1] -= 1

    def close(self) -> None:
        # Called by the last worker of an iterator. It does not wait: while a worker of a newer
        # iterator looks a file up, that iterator's own end closes the files.
        if not self._lock.acquire(blocking=False):
            return
        try:
            for shard in [number for number, entry in self._open.items() if not entry[1]]:
                os.close(self._open.pop(shard)[0])
        finally:
            self._lock.release()

    def _take(self, shard: int) -> list[int]:
        """Return the entry of an open shard with its count of readers raised by one."""
        with self._lock:
            entry = self._open.get(shard)
            if entry is not None:
                self._open.move_to_end(shard)
                entry[1] += 1
                return entry
        # Without the lock: to open a file may take long, and others have theirs open.
        descriptor = self._open_shard(shard)
        with self._lock:
            entry = self._open.setdefault(shard, [descriptor, 0])
            entry[1] += 1
            if entry[0] != descriptor:  # another worker was faster
                os.close(descriptor)
            self._evict()
        return entry

    def _evict(self) -> None:
        if len(self._open) <= self._most_open:
            return
        for shard, (descriptor, readers) in self._open.items():
            if not readers:
                os.close(descriptor)
                del self._open[shard]
                return

    def _open_shard(self, shard: int) -> int:
        path = self._folder / self._names[shard]
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be opened: {error.strerror}; it was there when the dataset was "
                "opened"
            ) from error

    def _pread(self, descriptor: int, shard: int, offset: int, size: int) -> bytes:
        try:
            data = os.pread(descriptor, size, offset)
            while len(data) < size:  # one read brings at most 2 GiB
                more = os.pread(descriptor, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise StoreError(
                f"{self._folder / self._names[shard]}, byte {offset}: cannot be read: "
                f"{error.strerror}"
            ) from error
        if len(data) < size:
            raise StoreError(
                f"{self._folder / self._names[shard]} ends before byte {offset + size:,}; it was "
                "cut off after it was indexed: restore it, or pack it again"
            )
        return data
