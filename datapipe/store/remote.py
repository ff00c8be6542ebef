"""Members of samples, read from remote shards: many ranges at a time, joined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, Future
from typing import NamedTuple

from datapipe.errors import StoreError
from datapipe.index.rows import Member
from datapipe.remote.folder import RemoteFolder
from datapipe.store.protocol import Fetch, Store

_GAP = 64 << 10  # reading a few unneeded bytes is cheaper than another request
_JOINED = 8 << 20  # bytes of a request at most, unless one member has more


class ByteSpan(NamedTuple):
    """Bytes of one shard, read by one request."""

    shard: int
    start: int
    stop: int


def join(samples: Sequence[tuple[int, Sequence[Member]]]) -> list[ByteSpan]:
    """Return the spans that hold all members of samples, in the order in which samples need them.

    Neighbours in a shard become one span, whichever samples they belong to.
    """
    needed: dict[int, list[tuple[int, int, int]]] = {}  # by shard: start, stop, first sample
    for number, (shard, members) in enumerate(samples):
        needed.setdefault(shard, []).extend((m.offset, m.offset + m.size, number) for m in members)
    found: list[tuple[int, ByteSpan]] = []
    for shard, pieces in needed.items():
        joined: list[tuple[int, int, int]] = []
        for start, stop, number in sorted(piece for piece in pieces if piece[0] < piece[1]):
            if joined:
                first, last, least = joined[-1]
                if start - last <= _GAP and max(last, stop) - first <= _JOINED:
                    joined[-1] = first, max(last, stop), min(least, number)
                    continue
            joined.append((start, stop, number))
        found += [(number, ByteSpan(shard, start, stop)) for start, stop, number in joined]
    return [span for _, span in sorted(found)]


class RemoteStore(Store):
    """A reader of shards in a remote folder, for any thread."""

    def __init__(self, folder: RemoteFolder, names: Sequence[str]) -> None:
        self._folder = folder
        self._names = names

    def name(self, shard: int) -> str:
        return self._names[shard]

    def read(self, shard: int, members: Sequence[Member]) -> list[memoryview]:
        return self.begin([(shard, members)]).contents(0)

    def begin(self, samples: Sequence[tuple[int, Sequence[Member]]]) -> Fetch:
        reads: dict[int, list[tuple[ByteSpan, Future[bytes]]]] = {}
        spans = join(samples)
        for span in spans:
            future = self._folder.begin(self._names[span.shard], span.start, span.stop)
            reads.setdefault(span.shard, []).append((span, future))

        def contents(number: int) -> list[memoryview]:
            shard, members = samples[number]
            return [_taken(reads.get(shard, ()), member) for member in members]

        return Fetch(sum(span.stop - span.start for span in spans), contents)

    def close(self) -> None:
        self._folder.close()


def _taken(reads: Iterable[tuple[ByteSpan, Future[bytes]]], member: Member) -> memoryview:
    """Wait for the read that holds a member; return its bytes."""
    if not member.size:
        return memoryview(b"")
    for span, future in reads:
        if span.start <= member.offset and member.offset + member.size <= span.stop:
            try:
                data = memoryview(future.result())
            except CancelledError:
                raise StoreError("the loader was closed while this was being read") from None
            start = member.offset - span.start
            return data[start : start + member.size]
    raise AssertionError("every member is in a span")
