"""Bytes of a dataset's files, by name and range, from a folder or a URL."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from datapipe.errors import StoreError
from datapipe.remote.folder import NoRangesError, RemoteOptions
from datapipe.remote.upload import RemoteTarget


class OpenFile(NamedTuple):
    """A file that is read by range."""

    size: int  # bytes
    fill: Callable[[memoryview, int], int]
    """Read from an offset into a buffer; return the bytes read, fewer than asked at the end only.

    Raises `StoreError` or `OSError`.
    """


class FolderSource:
    """Files of a local folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> bytes | None:
        """Return a whole file; None if it is missing."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """Return the names of the files in the folder, sorted; none if it is missing."""
        return sorted(os.listdir(self.folder)) if self.folder.exists() else []

    @contextmanager
    def open(self, name: str) -> Iterator[OpenFile | None]:
        """Open a file; None if it is missing."""
        try:
            file = io.FileIO(self.folder / name)
        except FileNotFoundError:
            yield None
            return

        def fill(buffer: memoryview, offset: int) -> int:
            done = 0
            while done < len(buffer):  # one read brings at most 2 GiB
                count = os.preadv(file.fileno(), [buffer[done:]], offset + done)
                if not count:
                    break
                done += count
            return done

        with file:
            yield OpenFile(os.fstat(file.fileno()).st_size, fill)


class RemoteSource:
    """Files of a folder behind a URL; `StoreError` without an answer. Some list no names."""

    def __init__(self, url: str) -> None:
        self.folder = RemoteTarget(url, RemoteOptions())

    def read(self, name: str) -> bytes | None:
        return self.folder.read_or_none(name)

    def names(self) -> list[str]:
        return self.folder.begin_task(self.folder.names()).result()

    @contextmanager
    def open(self, name: str) -> Iterator[OpenFile | None]:
        if (size := self.folder.size_now(name)) is None:
            yield None
            return

        def fill(buffer: memoryview, offset: int) -> int:
            stop = min(offset + len(buffer), size)
            if stop <= offset:
                return 0
            data = self.folder.begin(name, offset, stop).result()
            buffer[: len(data)] = data
            return len(data)

        yield OpenFile(size, fill)


Source = FolderSource | RemoteSource


def read_failure(error: OSError | StoreError) -> str:
    """Return the problem of a range that cannot be read; raise `error` if no file is to blame."""
    if isinstance(error, NoRangesError):
        raise error
    return f"cannot be read: {getattr(error, 'strerror', None) or error}"
