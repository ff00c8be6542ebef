"""The interface of a store of samples, wherever it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from datapipe.index.files.crc32 import crc32
from datapipe.index.rows import Member


class Fetch(NamedTuple):
    """Members of several samples on their way."""

    bytes: int  # that are read
    # Waits for a sample's members, by its number, in the order asked for, or raises `StoreError`
    contents: Callable[[int], list[memoryview]] = lambda number: []


class Store(Protocol):
    """A reader of members of samples, for any thread."""

    def name(self, shard: int) -> str:
        """Return the file name of a shard."""

    def read(self, shard: int, members: Sequence[Member]) -> list[memoryview]:
        """Return the bytes of members of one shard, in the order given, or raise `StoreError`."""

    def begin(self, samples: Sequence[tuple[int, Sequence[Member]]]) -> Fetch | None:
        """Begin to read samples, each members of a shard; None where that gains nothing."""
        return None

    def verify(self, member: Member, data: bytes | memoryview) -> bool:
        """Return whether `data` is what was packed."""
        return crc32(data) == member.crc32

    def close(self) -> None:
        """Close files and connections that are not in use; reading opens them again."""
        return
