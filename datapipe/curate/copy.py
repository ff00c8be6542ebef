"""Samples of shards copied into new shards by byte ranges, shard by shard as a pack writes them.

Runs of samples come in; a dataset goes out. Members are read in long ranges and compared with
their checksums. Each gets a header of ours, so tars with other headers, or with members that belong
to no sample, are copied by the same code. The index rows are kept, apart from offsets.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.array_types import Int64
from datapipe.curate.spec import CopyReport, CopySpec
from datapipe.errors import PackError, SampleError, StoreError
from datapipe.index.columns import open_columns
from datapipe.index.files.crc32 import NOT_AS_INDEXED, crc32
from datapipe.index.manifest import (
    MANIFEST,
    Manifest,
    Shard,
    fsync_folder,
    read_manifest,
    write_manifest,
)
from datapipe.index.parquet import with_offsets, write_index
from datapipe.index.rows import Member
from datapipe.index.sidecars import parse_sidecars, write_sidecars
from datapipe.pack.input.raw_sample import InputCount, Reject
from datapipe.pack.journal import (
    Journal,
    refuse_foreign,
    remove_finished,
    remove_leftovers,
    remove_working_folder,
    same_options,
    working_folder,
)
from datapipe.pack.options import parse_shard_size
from datapipe.pack.sequence import ShardSink
from datapipe.pack.space import check_room
from datapipe.pack.writers.shards import ShardSize, writing
from datapipe.pack.writers.ustar import BLOCK, member_header, padding
from datapipe.progress import Progress
from datapipe.store.protocol import Fetch, Store

_CHUNK = 8 << 20  # bytes whose rows are handled together, unless one sample has more
_READ = 1 << 20  # bytes that are read at once, unless one member has more: they fit into caches
_SPANS = 16  # that are read together; what is between them is read, too, if it is little
_AHEAD = 8  # chunks whose reads are begun ahead
_EXAMPLES = 5  # rejects in a report


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


def copy_samples(
    runs: Sequence[SampleRun],
    out: Path,
    made_by: dict[str, Any],
    output: CopySpec,
    *,
    rejects: Sequence[Reject] = (),
    bytes: int = 0,
) -> CopyReport:
    """Copy samples into new shards in `out`; continue if an earlier run was interrupted.

    `made_by` says what the samples are: the command, its options, fingerprints of the sources. It
    is written to the manifest, and an output that was made by something else is refused. `rejects`
    are written to the file of rejects. `bytes` are those of all members, for the check of space.

    Raises:
        PackError: there are no samples, the output belongs to something else, or the disk is full.
        StoreError: a member cannot be read, or differs from its checksum.
        IndexMismatch: an index is not that of its manifest.
    """
    started = time.monotonic()
    samples = sum(run.samples for run in runs)
    if not samples:
        raise PackError(f"{out}: no sample would be copied there; choose others")
    made_by = made_by | ({"view": True} if output.view else {"shard_size": output.shard_size})
    before = manifest = finished_in(out, made_by)
    if manifest is None:
        with working_folder(out, lock_check=output.lock_check) as work:
            space = bytes if output.space_check and not output.view else 0
            # Another run may have ended meanwhile.
            manifest = finished_in(out, made_by) or _Copy(
                runs, out, work, made_by, output, rejects
            ).run(space)
    write_sidecars(out, manifest, parse_sidecars(output.sidecars))
    seconds = time.monotonic() - started
    return report_on(manifest, out, seconds, rejects, finished_before=before is not None)


def finished_in(out: Path, made_by: dict[str, Any], *, but: str = "") -> Manifest | None:
    """Return the finished dataset in `out`; None if it is still to be made.

    Raises PackError if something else is there, or a dataset made by anything but `made_by`; the
    option `but` is not compared.
    """
    if out.exists() and not out.is_dir():
        raise PackError(f"{out} is a file; give a folder")
    refuse_foreign(out)
    if not (out / MANIFEST).exists():
        return None
    manifest = read_manifest(out)
    if manifest.foreign or manifest.arrays is not None:
        raise PackError(f"{out} holds another dataset; give a new folder")
    options = manifest.parts[0].options
    same_options(out, {name: options[name] for name in options if name != but}, made_by)
    remove_finished(out, manifest, lock_check=True)  # left by a kill after the manifest
    return manifest


def report_on(
    manifest: Manifest,
    out: Path,
    seconds: float,
    rejects: Sequence[Reject] = (),
    *,
    finished_before: bool,
) -> CopyReport:
    """Return the report on a finished dataset."""
    return CopyReport(
        samples=manifest.samples,
        images=manifest.images,
        rejected=manifest.rejected,
        shards=len(manifest.shards),
        bytes=manifest.bytes,
        seconds=round(seconds, 3),
        output=str(out),
        examples=tuple(rejects[:_EXAMPLES]),
        finished_before=finished_before,
    )


class _Copy(NamedTuple):
    """One run of a copy."""

    runs: Sequence[SampleRun]
    out: Path
    work: Path
    made_by: dict[str, Any]
    output: CopySpec
    rejects: Sequence[Reject]

    def run(self, space: int) -> Manifest:
        """Write what is still to be written; `space` is the number of bytes to check for, or 0."""
        with writing(self.out):
            journal = Journal(self.out, self.made_by, None)
        sink = ShardSink(self.work, len(journal.shards), journal, lambda shard: None)
        try:
            if space:
                left = max(space - sum(shard.bytes for shard in journal.shards), 0)
                check_room(self.out, left, "samples to copy", "choose fewer samples")
            if not journal.shards:
                for reject in self.rejects:  # before any shard: each checkpoint has them all
                    sink.reject(reject)
            count = InputCount()  # its digest says nothing: `made_by` names the sources
            count.number = journal.last.inputs
            if self.output.view:
                self._link(journal, count)
            else:
                self._write(sink, count)
                sink.drain()
            with writing(self.out):
                count.number += len(self.rejects)
                part = journal.part(count, 0, self.made_by)
                journal.publish_rejects()
        finally:
            sink.close()
            journal.close()
        manifest = Manifest(shards=tuple(journal.shards), parts=(part,))
        with writing(self.out):
            remove_leftovers(self.out)
            open_columns(self.out, manifest)
            write_manifest(self.out, manifest)
        remove_working_folder(self.out)
        return manifest

    def _write(self, sink: ShardSink, count: InputCount) -> None:
        """Copy the samples after the first `count`."""
        chunks = _chunks(self.runs, parse_shard_size(self.output.shard_size), count.number)
        total = sum(run.samples for run in self.runs)
        with Progress("copying", unit="sample", total=total - count.number) as progress:
            for chunk, data in _begun(chunks):
                if chunk.begins_shard and sink.samples:
                    sink.cut(count, 0)
                sink.write_table(_parts(chunk, data), chunk.table)
                count.number += len(chunk.table)
                progress.advance(len(chunk.table))
        if sink.samples:
            sink.cut(count, 0)

    def _link(self, journal: Journal, count: InputCount) -> None:
        """Write indexes that name the shards where they are."""
        home = self.out.resolve()
        for number in range(len(journal.shards), len(self.runs)):
            run, name = self.runs[number], f"shard-{number:06d}.parquet"
            assert run.tar is not None
            table = run.rows()
            table = with_offsets(table, pc.list_flatten(table["offset"]).to_numpy())
            with writing(self.out):
                digest = write_index(self.work / name, table)
                (self.work / name).replace(self.out / name)
                fsync_folder(self.out)
                shard = Shard(
                    name=os.path.relpath(run.tar.resolve(), home),
                    index=name,
                    samples=len(table),
                    images=pc.sum(table["images"]).as_py(),
                    bytes=run.tar.stat().st_size,
                    index_sha256=digest,
                )
                count.number += len(table)
                journal.commit(shard, journal.checkpoint(count, 0))


class _CopyChunk(NamedTuple):
    """Neighbouring samples of a run and of the new shard."""

    run: SampleRun
    table: pa.Table  # their rows, with the offsets in the new shard
    begins_shard: bool
    # Parts of the old shard with members that lie to each other as in the new one
    spans: list[Member]
    starts: Int64  # int64 [M], offset of each member in its span: 0 begins the next span


def _chunks(runs: Iterable[SampleRun], size: ShardSize, skip: int) -> Iterator[_CopyChunk]:
    """Cut runs into chunks that lie in one new shard each, without the first `skip` samples."""
    samples = at = 0  # of the current shard
    for run in runs:
        if skip >= run.samples:
            skip -= run.samples
            continue
        table = run.rows().slice(skip).combine_chunks()
        skip = 0
        sizes = pc.list_flatten(table["size"]).to_numpy()
        old = pc.list_flatten(table["offset"]).to_numpy()
        edges = _edges(pc.list_value_length(table["size"]).to_numpy())
        stored = _edges(stored_bytes(sizes))
        new = stored[:-1] + BLOCK  # offsets, were all samples in one shard
        ends = stored[edges]  # of samples, likewise
        row = 0
        while row < len(table):
            stop = row + size.room(samples, at, ends[row:])
            begins_shard = stop == row
            if begins_shard:
                samples = at = 0
                stop = row + size.room(0, 0, ends[row:])
            most = int(np.searchsorted(ends, ends[row] + _CHUNK, side="right")) - 1
            stop = min(stop, max(most, row + 1))
            members = slice(edges[row], edges[stop])
            rows = with_offsets(table.slice(row, stop - row), new[members] + (at - ends[row]))
            spans = _spans(old[members], new[members], sizes[members])
            yield _CopyChunk(run, rows, begins_shard, *spans)
            samples += stop - row
            at += int(ends[stop] - ends[row])
            row = stop


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


def _edges(counts: Int64) -> Int64:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def _begun(
    chunks: Iterator[_CopyChunk],
) -> Iterator[tuple[_CopyChunk, Iterator[memoryview]]]:
    """Yield chunks with the bytes of their spans; reads behind a URL are begun ahead."""
    waiting: deque[tuple[_CopyChunk, Fetch | None]] = deque()
    for chunk in itertools.chain(chunks, [None] * _AHEAD):
        if chunk is not None:
            waiting.append((chunk, chunk.run.store.begin([(chunk.run.shard, chunk.spans)])))
        if waiting and (chunk is None or len(waiting) > _AHEAD):
            first, fetch = waiting.popleft()
            yield first, _read(first) if fetch is None else iter(fetch.contents(0))


def _read(chunk: _CopyChunk) -> Iterator[memoryview]:
    """Yield the bytes of the spans of a chunk; a few are read at once, when they are needed."""
    few: list[Member] = []
    for span in chunk.spans:
        if len(few) == _SPANS or sum(each.size for each in few) + span.size > _READ:
            yield from chunk.run.store.read(chunk.run.shard, few)
            few = []
        few.append(span)
    yield from chunk.run.store.read(chunk.run.shard, few)


def _parts(chunk: _CopyChunk, data: Iterator[memoryview]) -> Iterator[memoryview | bytes]:
    """Yield the bytes of a chunk in the new shard: headers, members and padding."""
    table, store = chunk.table, chunk.run.store
    keys, exts = table["key"].to_pylist(), table["ext"].to_pylist()
    names = ((key, ext) for key, of_key in zip(keys, exts, strict=True) for ext in of_key)
    facts = (pc.list_flatten(table[name]).to_pylist() for name in ("size", "crc32"))
    span, before = memoryview(b""), b""
    for (key, ext), size, checksum, start in zip(names, *facts, chunk.starts.tolist(), strict=True):
        if not start:
            span = next(data)
        content = span[start : start + size]
        if crc32(content) != checksum:
            name = store.name(chunk.run.shard)
            raise StoreError(f"{name}, sample {key}, member {ext}: {NOT_AS_INDEXED}")
        try:
            yield before + member_header(f"{key}.{ext}", size)
        except SampleError as error:
            raise PackError(f"{store.name(chunk.run.shard)}, sample {key}: {error}") from error
        yield content
        before = padding(size)
    yield before
