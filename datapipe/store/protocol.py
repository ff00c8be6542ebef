"""What a store of samples does, wherever it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from datapipe.index.rows import Member


class Fetch(Protocol):
    """Members of several samples on their way."""

    bytes: int

    def contents(self, place: int) -> list[memoryview]:
        """The members of one of the samples, in the order asked for; waits for them.

        Raises:
            StoreError: they cannot be read.
        """
        ...


class Store(Protocol):
    """Reads members of samples, from any thread."""

    def name(self, shard: int) -> str:
        """File name of a shard."""
        ...

    def read(self, shard: int, members: Sequence[Member]) -> list[memoryview]:
        """The bytes of some members of one shard, in the order given.

        Raises:
            StoreError: the shard cannot be opened or read, or ends too early.
        """
        ...

    def begin(self, samples: Sequence[tuple[int, Sequence[Member]]]) -> Fetch | None:
        """Begin to read samples, each some members of a shard; None where that gains nothing."""
        ...

    def verify(self, member: Member, data: bytes | memoryview) -> bool:
        """Whether `data` is what was packed; true where no checksum is known."""
        ...

    def close(self) -> None:
        """Let go of files and connections; reading opens them again."""
        ...
