"""Bytes of the samples of a batch: from a cache, from reads that have begun, or from the store."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from datapipe.array_types import Int64, UInt8
from datapipe.cache.entries import cut_entry, fill_members
from datapipe.cache.sample_cache import SOURCE
from datapipe.index.files.crc32 import NOT_AS_INDEXED
from datapipe.index.members import member_kind, wanted_members
from datapipe.index.rows import Member
from datapipe.loader.batch.context import BatchContext, StepJob
from datapipe.loader.batch.decoded_source import ArraySource, CachedSource, DecodedSource
from datapipe.loader.batch.sample_rows import SampleRows

_STALL = 1_000_000  # nanoseconds; to take bytes that have arrived takes some 10,000


class BadMember(Exception):
    """A member is not as it was packed."""

    def __init__(self, member: Member) -> None:
        super().__init__(NOT_AS_INDEXED)
        self.member = member


@dataclass(slots=True)
class ReadBytes:
    """Bytes of a sample: members that were read, and their contents."""

    members: list[Member]
    contents: list[memoryview]
    ready: UInt8 | None = None  # its images as a cache keeps them, instead of their members
    room: UInt8 | None = None  # memory for its images in a cache; `entry` is the whole entry
    entry: UInt8 | None = None


class SampleReader:
    """Reader of the samples of one batch, for any thread.

    `decoded` are the sources of samples that are in arrays, or decoded in the memory of a cache;
    `encoded`, bool [B], are those that have to be read. `images`, int64 [B], is the number of
    images of each that are wanted.
    """

    def __init__(
        self, context: BatchContext, step: StepJob, rows: SampleRows, images: Int64
    ) -> None:
        self._store = context.store
        self._cache = cache = context.cache
        self._fetch = step.fetch
        self._verify = context.options.verify
        self._samples = samples = step.samples
        self._rows = rows
        self._uses = None if cache is None else cache.uses(samples, step.next_use)
        self._images = None if context.images is None else images.tolist()
        self._resident = None if step.resident is None else step.resident.tolist()
        self.decoded: list[DecodedSource] = []
        included, whole = ~step.share.excluded, images == rows.counts
        self._whole: list[bool] = whole.tolist()
        if context.arrays is not None:
            slots = included if step.resident is None else included & ~step.resident
            slots = slots & context.arrays.hold(rows.parts)
            self.decoded.append(ArraySource(slots, rows, images, context.arrays, self._verify))
        elif cache is not None and self._uses is not None and cache.keep_decoded:
            self.decoded += [
                CachedSource(found.starts >= 0, rows, found.buffer, found.starts)
                for found in cache.in_place(self._uses, whole & included)
            ]
        self.encoded = np.ones(len(samples), bool)
        for source in self.decoded:
            self.encoded &= ~source.slots

    def read(self, slot: int) -> ReadBytes:
        """Read one sample; raise `BadMember` for a member that is not as it was packed."""
        count = 0 if self._images is None else self._images[slot]
        wanted = wanted_members(self._rows.of_sample(slot), count)
        cache = self._cache
        if cache is not None and self._resident is not None and self._resident[slot]:
            cache = cache.texts
        elif self._images is not None and not self._whole[slot]:
            cache = None  # of truncated samples a part is read, and entries are whole
        if cache is None or self._uses is None:
            return ReadBytes(wanted, self._bytes(slot, wanted))
        use = self._uses[slot]
        decoded = cache.keep_decoded and count > 0
        kept = [m for m in wanted if member_kind(m.ext) != "image"] if decoded else wanted
        entry = cache.get(use)
        if entry is not None:
            contents, rest = cut_entry(entry, kept)
            return ReadBytes(kept, contents, ready=rest if decoded else None)
        contents = self._bytes(slot, wanted)
        room = cache.room(use, int(cache.sizes(self._samples[slot : slot + 1])[0]))
        if room is not None:
            by_member = {id(member): data for member, data in zip(wanted, contents, strict=True)}
            rest = fill_members(room, [by_member[id(member)] for member in kept])
            if decoded:
                return ReadBytes(wanted, contents, room=rest, entry=room)
            cache.put(use, room)
        return ReadBytes(wanted, contents)

    def keep(self, slot: int, found: ReadBytes) -> None:
        """Keep a sample whose images were written to its `room`."""
        assert self._cache is not None
        assert self._uses is not None
        assert found.entry is not None
        self._cache.put(self._uses[slot], found.entry)

    def _bytes(self, slot: int, members: list[Member]) -> list[memoryview]:
        contents: list[memoryview] = []
        if self._fetch is not None:
            asked = time.perf_counter_ns()
            contents = self._fetch.contents(slot)
            waited = time.perf_counter_ns() - asked
            if waited > _STALL and self._cache is not None:
                self._cache.counter.count(SOURCE, stalls=1, stalled=waited)
        if len(contents) != len(members):
            # It was not fetched ahead: a cache held it then, and has evicted it since.
            contents = self._store.read(int(self._rows.shards[slot]), members)
        if self._verify:
            for member, data in zip(members, contents, strict=True):
                if not self._store.verify(member, data):
                    raise BadMember(member)
        return contents
