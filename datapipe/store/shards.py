"""Members of samples, read from tar shards at the places that the index names."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from datapipe.errors import StoreError
from datapipe.index.checksum import crc32
from datapipe.index.rows import Member

_MOST_OPEN = 128  # files; well below the usual limit of 1,024 a process
_JOIN = 1 << 16  # members closer than this many bytes are read in one go


class ShardStore:
    """Reads from many shards by position, from any thread, with a bounded number of open files."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._names = names
        self._lock = threading.Lock()
        # Shard number -> [descriptor, readers using it now], least recently used first.
        self._open: OrderedDict[int, list[int]] = OrderedDict()

    def __reduce__(self) -> tuple[object, ...]:
        # Another process opens the files itself, and may work in another folder.
        return ShardStore, (self._folder.absolute(), self._names)

    def name(self, shard: int) -> str:
        """File name of a shard."""
        return self._names[shard]

    def read(self, shard: int, members: Sequence[Member]) -> list[bytes]:
        """The bytes of some members of one shard, in the order given.

        Raises:
            StoreError: the shard cannot be opened or read, or ends too early.
        """
        if not members:
            return []
        with self._descriptor(shard) as descriptor:
            start = min(member.offset for member in members)
            stop = max(member.offset + member.size for member in members)
            if stop - start <= sum(m.size for m in members) + _JOIN * len(members):
                joined = self._pread(descriptor, shard, start, stop - start)
                return [joined[m.offset - start : m.offset - start + m.size] for m in members]
            return [self._pread(descriptor, shard, m.offset, m.size) for m in members]

    def verify(self, member: Member, data: bytes) -> bool:
        """Whether `data` is what was packed; true where no checksum is known."""
        return member.crc32 is None or crc32(data) == member.crc32

    def close(self) -> None:
        """Close every file that is not being read; reading opens them again.

        Called by the last worker of an iterator. It waits for nobody: while a worker of a newer
        iterator looks a file up, it leaves the files to that iterator's own end.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            for shard in [number for number, entry in self._open.items() if not entry[1]]:
                os.close(self._open.pop(shard)[0])
        finally:
            self._lock.release()

    @contextmanager
    def _descriptor(self, shard: int) -> Iterator[int]:
        with self._lock:
            entry = self._open.get(shard)
            if entry is None:
                entry = self._open[shard] = [self._open_shard(shard), 0]
            self._open.move_to_end(shard)
            entry[1] += 1
            self._evict()
        try:
            yield entry[0]
        finally:
            with self._lock:
                entry[1] -= 1

    def _evict(self) -> None:
        if len(self._open) <= _MOST_OPEN:
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
