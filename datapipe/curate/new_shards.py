"""New shards of a copy: which samples each has, and their bytes.

Members are read in long ranges and compared with their checksums. Each gets a header of ours, so
tars with other headers, or with members that belong to no sample, are copied by the same code.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.array_types import Int64
from datapipe.errors import PackError, SampleError, StoreError
from datapipe.index.files.crc32 import NOT_AS_INDEXED, crc32
from datapipe.index.mixture import edges_of
from datapipe.index.parquet import with_offsets
from datapipe.index.rows import Member
from datapipe.pack.writers.shards import ShardSize, ShardWriter, WrittenShard, attempt_shard
from datapipe.pack.writers.ustar import BLOCK, member_header, padding
from datapipe.store.protocol import Fetch, Store
from datapipe.workers.ray_cluster import node_name

_CHUNK = 8 << 20  # bytes whose rows are handled together, unless one sample has more
# Bytes that are read at once, unless one member has more: they fit into caches, and are so few that
# the allocator does not return them to the system each time
_READ = 1 << 18
_SPANS = 16  # that are read together; what is between them is read, too, if it is little
_AHEAD = 8  # chunks whose reads are begun ahead


@dataclass(frozen=True, kw_only=True)
class SampleRun:
    """Samples of one shard, copied one after the other."""

    store: Store
    shard: int  # its number in the store
    samples: int
    # Returns the rows of the samples, in order, with their offsets in this shard; a table of the
    # schema of an index
    rows: Callable[[], pa.Table]
    tar: Path | None = None  # the shard, which a view names


class CopyChunk(NamedTuple):
    """Neighbouring samples of a run and of the new shard."""

    store: int  # number of the store
    shard: int  # its number in the store
    table: pa.Table  # their rows, with the offsets in the new shard
    # Parts of the old shard with members that lie to each other as in the new one
    spans: list[Member]
    starts: Int64  # int64 [M], offset of each member in its span: 0 begins the next span


class NewShard(NamedTuple):
    """Job: a shard that is to be written."""

    number: int
    chunks: list[CopyChunk]


@dataclass(frozen=True)
class ShardCopier:
    """Writer of new shards into folders in `work`, from any thread."""

    stores: Sequence[Store]
    work: Path
    node: str = ""
    stop: threading.Event = field(default_factory=threading.Event)

    def write(self, job: NewShard) -> WrittenShard:
        return attempt_shard(self.work, job.number, partial(self._fill, job), self.node)

    def _fill(self, job: NewShard, writer: ShardWriter) -> None:
        for chunk, data in _begun(job.chunks, self.stores):
            if self.stop.is_set():
                raise StoreError("the copy was stopped")
            writer.write_table(_parts(chunk, self.stores[chunk.store], data), chunk.table)


def shard_copier(stores: Sequence[Store], work: Path) -> Callable[[NewShard], WrittenShard]:
    """Return the function of a task on a node, which must see the output."""
    if not work.is_dir():
        raise PackError(f"the output folder {work.parent} does not exist")
    return ShardCopier(stores, work, node_name()).write


def new_shards(
    runs: Iterable[SampleRun], stores: Sequence[Store], size: ShardSize, skip: int, number: int
) -> Iterator[NewShard]:
    """Cut runs into shards from a number on, and these into chunks; leave `skip` samples out."""
    chunks: list[CopyChunk] = []
    samples = at = 0  # of the current shard
    for run in runs:
        if skip >= run.samples:
            skip -= run.samples
            continue
        table = run.rows().slice(skip).combine_chunks()
        skip = 0
        sizes = pc.list_flatten(table["size"]).to_numpy()
        old = pc.list_flatten(table["offset"]).to_numpy()
        edges = edges_of(pc.list_value_length(table["size"]).to_numpy())
        stored = edges_of(stored_bytes(sizes))
        new = stored[:-1] + BLOCK  # offsets, were all samples in one shard
        ends = stored[edges]  # of samples, likewise
        row = 0
        while row < len(table):
            stop = row + size.room(samples, at, ends[row:])
            if stop == row:
                yield NewShard(number, chunks)
                number, chunks, samples, at = number + 1, [], 0, 0
                stop = row + size.room(0, 0, ends[row:])
            most = int(np.searchsorted(ends, ends[row] + _CHUNK, side="right")) - 1
            stop = min(stop, max(most, row + 1))
            members = slice(edges[row], edges[stop])
            rows = with_offsets(table.slice(row, stop - row), new[members] + (at - ends[row]))
            spans = _spans(old[members], new[members], sizes[members])
            chunks.append(CopyChunk(stores.index(run.store), run.shard, rows, *spans))
            samples += stop - row
            at += int(ends[stop] - ends[row])
            row = stop
    if chunks:
        yield NewShard(number, chunks)


def _spans(old: Int64, new: Int64, sizes: Int64) -> tuple[list[Member], Int64]:
    """Return spans of the old shard, and the offset of each member in its span: int64 [M]."""
    begins = np.diff((new - new[0]) // _READ, prepend=-1) != 0
    begins[1:] |= np.diff(old - new) != 0
    firsts = np.flatnonzero(begins)
    lasts = np.append(firsts[1:], len(old)) - 1
    lengths = old[lasts] + sizes[lasts] - old[firsts]
    pairs = zip(old[firsts].tolist(), lengths.tolist(), strict=True)
    spans = [Member("", start, length, 0) for start, length in pairs]
    return spans, old - np.repeat(old[firsts], lasts - firsts + 1)


def stored_bytes(sizes: Int64) -> Int64:
    """Return the bytes that members of these sizes take in a shard: int64 [M] in and out."""
    return BLOCK + (sizes + BLOCK - 1) // BLOCK * BLOCK


def _begun(
    chunks: Iterable[CopyChunk], stores: Sequence[Store]
) -> Iterator[tuple[CopyChunk, Iterator[memoryview]]]:
    """Yield chunks with the bytes of their spans; reads behind a URL are started ahead."""
    waiting: deque[tuple[CopyChunk, Fetch | None]] = deque()
    for chunk in itertools.chain(chunks, [None] * _AHEAD):
        if chunk is not None:
            waiting.append((chunk, stores[chunk.store].begin([(chunk.shard, chunk.spans)])))
        if waiting and (chunk is None or len(waiting) > _AHEAD):
            first, fetch = waiting.popleft()
            read = _read(first, stores[first.store]) if fetch is None else iter(fetch.contents(0))
            yield first, read


def _read(chunk: CopyChunk, store: Store) -> Iterator[memoryview]:
    """Yield the bytes of the spans of a chunk; a few are read at once, when they are needed."""
    few: list[Member] = []
    for span in chunk.spans:
        if len(few) == _SPANS or sum(each.size for each in few) + span.size > _READ:
            yield from store.read(chunk.shard, few)
            few = []
        few.append(span)
    yield from store.read(chunk.shard, few)


def _parts(
    chunk: CopyChunk, store: Store, data: Iterator[memoryview]
) -> Iterator[memoryview | bytes]:
    table = chunk.table
    keys, exts = table["key"].to_pylist(), table["ext"].to_pylist()
    names = ((key, ext) for key, of_key in zip(keys, exts, strict=True) for ext in of_key)
    facts = (pc.list_flatten(table[name]).to_pylist() for name in ("size", "crc32"))
    span, before = memoryview(b""), b""
    for (key, ext), size, checksum, start in zip(names, *facts, chunk.starts.tolist(), strict=True):
        if not start:
            span = next(data)
        content = span[start : start + size]
        if crc32(content) != checksum:
            name = store.name(chunk.shard)
            raise StoreError(f"{name}, sample {key}, member {ext}: {NOT_AS_INDEXED}")
        try:
            yield before + member_header(f"{key}.{ext}", size)
        except SampleError as error:
            raise PackError(f"{store.name(chunk.shard)}, sample {key}: {error}") from error
        yield content
        before = padding(size)
    yield before
