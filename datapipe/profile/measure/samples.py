"""Samples of a loader's plan: the first read of each, from storage, and their bytes in memory."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import psutil

from datapipe.array_types import Int64
from datapipe.decode.image import Encoded
from datapipe.index.images.header import is_stored_image
from datapipe.index.members import wanted_members
from datapipe.index.rows import Member
from datapipe.loader.batch.context import BatchContext
from datapipe.profile.measure.usage import bytes_read, queued_seconds
from datapipe.remote.folder import RemoteFolder
from datapipe.store.protocol import Store

COLD = "read, cold"
"""Reads past the page cache; no pipeline has them as a stage."""

_TOGETHER = 16  # samples that are dropped from the page cache, and then read
_KEPT = 64 << 20  # bytes of members that are kept in memory
_FROM_STORAGE = 0.5  # of the bytes asked for, that storage must have delivered to count as cold

Stored = tuple[int, list[Member]]
"""Shard of a sample, and its members that a batch needs."""

Contents = dict[tuple[int, int, int], memoryview]
"""Bytes of members, by shard, offset and size."""


@dataclass(kw_only=True)
class FirstReads:
    """First reads of some samples, before anything else reads them."""

    stored: Sequence[Stored]  # all samples
    contents: Contents = field(default_factory=dict)  # of some of them
    images: list[Encoded] = field(default_factory=list)  # the first one of each of these
    # of the samples that storage delivered: number, seconds without those that this thread waited
    # for a processor, and bytes
    cold: int = 0
    cold_seconds: float = 0.0
    cold_bytes: int = 0


@dataclass(frozen=True)
class MemoryStore(Store):
    """Store that has some members in memory, and reads the others from another one."""

    store: Store
    contents: Contents

    def name(self, shard: int) -> str:
        return self.store.name(shard)

    def read(self, shard: int, members: Sequence[Member]) -> list[memoryview]:
        found = [self.contents.get((shard, member.offset, member.size)) for member in members]
        there = [data for data in found if data is not None]
        return there if len(there) == len(found) else self.store.read(shard, members)

    def verify(self, member: Member, data: bytes | memoryview) -> bool:
        return self.store.verify(member, data)

    def close(self) -> None:
        self.store.close()


def stored_samples(context: BatchContext, samples: Int64) -> list[Stored]:
    """Return the shard and the members of each sample, with images only if batches have them."""
    columns = context.dataset.columns
    found = []
    for sample in samples.tolist():
        members = columns.members(sample)
        images = 0 if context.images is None else len(members)
        found.append((columns.shard(sample), wanted_members(members, images)))
    return found


def read_first(context: BatchContext, stored: Sequence[Stored], most: float) -> FirstReads:
    """Read samples for at most so many seconds, past the page cache if the system allows it."""
    reads = FirstReads(stored=stored)
    kept, until = 0, time.perf_counter() + most
    for start in range(0, len(stored), _TOGETHER):
        part = stored[start : start + _TOGETHER]
        evicted, before, queued = evict(context, part), delivered(), queued_seconds()
        seconds, asked = 0.0, 0
        for shard, members in part:
            began = time.perf_counter()
            contents = context.store.read(shard, members)
            seconds += time.perf_counter() - began
            asked += sum(map(len, contents))
            if kept < _KEPT:
                kept += sum(map(len, contents))
                images = []
                for member, data in zip(members, contents, strict=True):
                    reads.contents[shard, member.offset, member.size] = data
                    images += [data] if is_stored_image(member.ext) else []
                reads.images += images[:1]
        if evicted and was_cold(before, asked):
            reads.cold += len(part)
            reads.cold_seconds += seconds - (queued_seconds() - queued)
            reads.cold_bytes += asked
        if time.perf_counter() > until:
            break
    return reads


def evict(context: BatchContext, stored: Sequence[Stored]) -> bool:
    """Ask the system to drop some samples from the page cache; False if it cannot be asked."""
    folder = context.dataset.folder
    if isinstance(folder, RemoteFolder):
        return False
    try:
        for shard, members in stored:
            with io.FileIO(folder / context.store.name(shard)) as file:
                for member in members:
                    span = member.offset, member.size
                    os.posix_fadvise(file.fileno(), *span, os.POSIX_FADV_DONTNEED)
    except OSError:
        return False
    return True


def delivered() -> int | None:
    """Return the bytes that storage delivered to this process so far; None if unknown."""
    return next(iter(bytes_read([psutil.Process()]).values()), None)


def was_cold(before: int | None, asked: int) -> bool:
    """Check that most of `asked` bytes came from storage since `delivered` returned `before`."""
    now = delivered()
    if before is None or now is None or not asked:
        return False
    return now - before >= _FROM_STORAGE * asked
