"""Members of samples, read from tar shards at the offsets that the index holds."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from functools import lru_cache, partial
from io import FileIO
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
        most = _MOST_OPEN
        if limit != resource.RLIM_INFINITY:
            most = min(_MOST_OPEN, max(1, limit // 8))
        self._opened = lru_cache(most)(partial(_open_shard, folder, names))

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
        file = self._opened(shard)
        if stop - start <= needed:
            joined = memoryview(self._pread(file, shard, start, stop - start))
            return [joined[m.offset - start : m.offset - start + m.size] for m in members]
        return [memoryview(self._pread(file, shard, m.offset, m.size)) for m in members]

    def close(self) -> None:
        self._opened.cache_clear()

    def _pread(self, file: _ShardFile, shard: int, offset: int, size: int) -> bytes:
        descriptor = file.fileno()
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


class _ShardFile(FileIO):
    """A file that is closed when the cache and the last reader have dropped it.

    Its destructor is C: Python drops an interrupt that comes while one of its own runs.
    """

    __del__ = FileIO.close


def _open_shard(folder: Path, names: Sequence[str], shard: int) -> _ShardFile:
    path = folder / names[shard]
    try:
        return _ShardFile(path)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be opened: {error.strerror}; it was there when the dataset was opened"
        ) from error
