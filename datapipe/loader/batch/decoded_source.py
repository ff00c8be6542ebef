"""Samples whose images are decoded in memory, taken many at a time.

To copy an image takes some 30 µs. To look each sample up, read and parse it by itself, as for
samples that have to be decoded, would take Python longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

import numpy as np

from datapipe.array_types import Bools, Float64, Int64, UInt8
from datapipe.cache.entries import FACTS
from datapipe.errors import SampleError
from datapipe.index.members import Kind, SampleParts, member_kind
from datapipe.loader.batch.sample_rows import SampleRows
from datapipe.plan.ragged import edges, grouped, owners, places, ranges
from datapipe.store.arrays import IMAGES, TEXTS
from datapipe.store.mixture import MixtureArrays

_REMEDY = "restore it, or convert the shards again"


@dataclass(frozen=True, slots=True)
class BatchTextMembers:
    """Members with texts of n samples, m together."""

    members: Int64  # int64 [m], indices in the members of `SampleRows`
    bounds: Int64  # int64 [n + 1]; sample i has the members `bounds[i]` to `bounds[i + 1]`
    edges: Int64  # int64 [m + 1], offsets of the members if they were concatenated
    kinds: list[Kind]

    @classmethod
    def of(cls, rows: SampleRows, slots: Int64) -> BatchTextMembers:
        """Return the members of the samples in some slots."""
        found, bounds = places(rows.bounds, slots)
        codes = rows.codes[found]
        texts, kinds = text_kinds(rows.extensions)
        if not texts.all():
            wanted = texts[codes]
            found, codes = found[wanted], codes[wanted]
            bounds = edges(wanted.view(np.uint8))[bounds]
        sizes = edges(rows.sizes[found])
        return cls(found, bounds, sizes, [kinds[code] for code in codes.tolist()])

    @classmethod
    def none(cls, samples: int) -> BatchTextMembers:
        """Return no members, for samples whose texts are not needed."""
        nothing = np.zeros(1, np.int64)
        return cls(nothing[:0], np.zeros(samples + 1, np.int64), nothing, [])

    def parse(
        self, contents: Iterable[memoryview]
    ) -> tuple[list[SampleParts], list[tuple[int, int, SampleError]]]:
        """Parse the content of each member.

        Return the n samples without images, and each damaged member: index in `members`, sample
        from 0 to n, and the reason.
        """
        parts = [SampleParts() for _ in self.bounds[1:]]
        damaged = []
        items = zip(owners(self.bounds).tolist(), self.kinds, contents, strict=True)
        for index, (owner, kind, data) in enumerate(items):
            try:
                parts[owner].add_text(kind, data)
            except SampleError as error:
                damaged.append((index, owner, error))
        return parts, damaged


@cache
def text_kinds(extensions: tuple[str, ...]) -> tuple[Bools, list[Kind]]:
    """Return whether each extension of a dataset is a text, and its kind."""
    kinds = [member_kind(ext) for ext in extensions]
    return np.array([kind in ("text", "json") for kind in kinds], bool), kinds


@dataclass(frozen=True, slots=True)
class DecodedSource:
    """Samples of a batch whose images are decoded in memory."""

    slots: Bools  # bool [B], the samples
    rows: SampleRows  # of all samples of the batch
    before: ClassVar[int]  # bytes before each image, with facts about it
    interleaved: ClassVar[bool]  # red, green and blue of a pixel are adjacent
    behind_texts: ClassVar[bool]  # images are found by the sizes of the texts before them

    def texts(self, slots: Int64, texts: BatchTextMembers) -> Iterator[memoryview]:
        """Return the content of each text of the samples in some slots."""
        raise NotImplementedError

    def images(self, slots: Int64, texts: BatchTextMembers) -> Int64:
        """Return the offset of the images of each slot in their buffer, int64 [n]."""
        raise NotImplementedError

    def buffers(self, slots: Int64) -> Iterator[tuple[UInt8, Int64]]:
        """Yield each buffer with images of some slots' samples, and their indices in `slots`."""
        raise NotImplementedError

    def placements(self, slot: int) -> Float64 | None:
        """Return the placements of a sample's images; None if they are before each image."""
        return None

    def damaged(self, slots: Int64, texts: BatchTextMembers) -> dict[int, str]:
        """Return the damage of the samples in some slots, by slot."""
        return {}


@dataclass(frozen=True, slots=True)
class CachedSource(DecodedSource):
    """Samples in the memory of a cache, which is trusted."""

    data: UInt8 = field(repr=False)
    starts: Int64  # int64 [B], offset of the entry of each: its texts, and then its images
    before = FACTS
    interleaved = False
    behind_texts = True

    def texts(self, slots: Int64, texts: BatchTextMembers) -> Iterator[memoryview]:
        ends: Int64 = texts.edges[texts.bounds]
        begins = texts.edges[:-1] + np.repeat(self.starts[slots] - ends[:-1], np.diff(texts.bounds))
        view = self.data.data
        stops = begins + np.diff(texts.edges)
        return (view[a:b] for a, b in zip(begins.tolist(), stops.tolist(), strict=True))

    def images(self, slots: Int64, texts: BatchTextMembers) -> Int64:
        sizes: Int64 = np.diff(texts.edges[texts.bounds])
        return self.starts[slots] + (sizes + 7) // 8 * 8

    def buffers(self, slots: Int64) -> Iterator[tuple[UInt8, Int64]]:
        yield self.data, np.arange(len(slots))


@dataclass(frozen=True, slots=True)
class ArraySource(DecodedSource):
    """Samples in datasets of arrays."""

    counts: Int64  # int64 [B], number of images of each that are wanted
    arrays: MixtureArrays
    verify: bool  # images and texts are compared with their checksums
    before = 0
    interleaved = True
    behind_texts = False

    def texts(self, slots: Int64, texts: BatchTextMembers) -> Iterator[memoryview]:
        starts = self.rows.offsets[texts.members]
        stops = starts + self.rows.sizes[texts.members]
        parts = self._parts_of(slots, texts)
        views = {part: self.arrays.part(part).texts.texts.data for part in set(parts)}
        found = zip(parts, starts.tolist(), stops.tolist(), strict=True)
        return (views[part][start:stop] for part, start, stop in found)

    def images(self, slots: Int64, texts: BatchTextMembers) -> Int64:
        first = self.rows.images[slots] - self.arrays.image_edges[self.rows.parts[slots]]
        return first * self.arrays.size

    def buffers(self, slots: Int64) -> Iterator[tuple[UInt8, Int64]]:
        for number, at in grouped(self.rows.parts[slots]):
            held = self.arrays.part(number).images
            if held is not None:
                yield held.data, at

    def placements(self, slot: int) -> Float64 | None:
        part = int(self.rows.parts[slot])
        held = self.arrays.part(part).images
        assert held is not None
        first = int(self.rows.images[slot] - self.arrays.image_edges[part])
        found: Float64 = held.placements[first : first + int(self.counts[slot])]
        return found

    def damaged(self, slots: Int64, texts: BatchTextMembers) -> dict[int, str]:
        if not self.verify:
            return {}
        found = {}
        if self.arrays.size:
            counts = self.counts[slots]
            slot_of = np.repeat(slots, counts)
            bad = self.arrays.damaged_images(ranges(self.rows.images[slots], counts))
            reason = f"its image in {IMAGES} is not the one that was written; {_REMEDY}"
            found = dict.fromkeys(slot_of[bad].tolist(), reason)
        members, parts = texts.members.tolist(), self._parts_of(slots, texts)

        def is_whole(index: int) -> bool:
            member, held = self.rows.member(members[index]), self.arrays.part(parts[index]).texts
            text = held.texts[member.offset : member.offset + member.size].data
            return held.verify(member, text)

        bad = self.arrays.damaged_texts(self.rows.members[texts.members], is_whole)
        slot_of = np.repeat(slots, np.diff(texts.bounds))
        reason = f"its text in {TEXTS} is not the one that was written; {_REMEDY}"
        return found | dict.fromkeys(slot_of[bad].tolist(), reason)

    def _parts_of(self, slots: Int64, texts: BatchTextMembers) -> list[int]:
        parts: list[int] = np.repeat(self.rows.parts[slots], np.diff(texts.bounds)).tolist()
        return parts
