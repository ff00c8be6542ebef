"""Samples of one dataset whose images are decoded in one buffer, taken many at a time.

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
from datapipe.index.columns import Columns
from datapipe.index.members import Kind, SampleParts, member_kind
from datapipe.plan.ragged import edges, places, ranges
from datapipe.store.arrays import IMAGES, TEXTS, ArrayStore, ImageArray

_REMEDY = "restore it, or convert the shards again"


@dataclass(frozen=True, slots=True)
class BatchTextMembers:
    """Members with texts of n samples, m together.

    Attributes:
        members: int64 [m], indices in the columns of members.
        bounds: int64 [n + 1]; sample i has the members `bounds[i]` to `bounds[i + 1]`.
        edges: int64 [m + 1], offsets of the members if they were concatenated.
        kinds: of each.
    """

    members: Int64
    bounds: Int64
    edges: Int64
    kinds: list[Kind]

    @classmethod
    def of(cls, columns: Columns, samples: Int64) -> BatchTextMembers:
        """Return the members of some samples."""
        found, bounds = places(columns.sample_member, samples)
        codes = columns.member_ext[found]
        texts, kinds = text_kinds(columns.extensions)
        if not texts.all():
            wanted = texts[codes]
            found, codes = found[wanted], codes[wanted]
            bounds = edges(wanted.view(np.uint8))[bounds]
        sizes = edges(columns.member_size[found])
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

        Returns:
            The n samples without images, and each damaged member: index in `members`, sample from 0
            to n, and the reason.
        """
        samples = len(self.bounds) - 1
        parts = [SampleParts() for _ in range(samples)]
        damaged = []
        owners = np.repeat(np.arange(samples), np.diff(self.bounds)).tolist()
        for index, (owner, kind, data) in enumerate(zip(owners, self.kinds, contents, strict=True)):
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
    """Samples of a batch whose images are decoded in one buffer.

    Attributes:
        slots: bool [B], the samples.
        columns: of the dataset.
        samples: int64 [B], numbers of the samples in `columns`; of other slots meaningless.
        data: the buffer, with the images of a sample one after the other; None without images.
        before: bytes before each image, with facts about it.
        interleaved: whether red, green and blue of a pixel are adjacent.
    """

    slots: Bools
    columns: Columns
    samples: Int64
    data: UInt8 | None = field(repr=False)  # that of a mixture is all memory
    before: ClassVar[int]
    interleaved: ClassVar[bool]

    def members(self, slots: Int64) -> BatchTextMembers:
        """Return the texts of the samples in some slots."""
        return BatchTextMembers.of(self.columns, self.samples[slots])

    def texts(self, slots: Int64, texts: BatchTextMembers) -> Iterator[memoryview]:
        """Return the content of each text of the samples in some slots."""
        raise NotImplementedError

    def images(self, slots: Int64, texts: BatchTextMembers) -> Int64:
        """Return the offset in `data` of the images of the samples in some slots: int64 [n]."""
        raise NotImplementedError

    def placements(self, slot: int) -> Float64 | None:
        """Return the placements of a sample's images; None if they are before each image."""
        return None

    def damaged(self, slots: Int64, texts: BatchTextMembers) -> dict[int, str]:
        """Return the damage of the samples in some slots, by slot."""
        return {}


@dataclass(frozen=True, slots=True)
class CachedSource(DecodedSource):
    """Samples in the memory of a cache, which is trusted.

    Attributes:
        starts: int64 [B], offset of the entry of each: its texts, and then its images.
    """

    starts: Int64
    before = FACTS
    interleaved = False

    def texts(self, slots: Int64, texts: BatchTextMembers) -> Iterator[memoryview]:
        assert self.data is not None
        ends: Int64 = texts.edges[texts.bounds]
        counts = texts.bounds[1:] - texts.bounds[:-1]
        return cut_texts(self.data, texts, np.repeat(self.starts[slots] - ends[:-1], counts))

    def images(self, slots: Int64, texts: BatchTextMembers) -> Int64:
        sizes: Int64 = np.diff(texts.edges[texts.bounds])
        return self.starts[slots] + (sizes + 7) // 8 * 8


@dataclass(frozen=True, slots=True)
class MappedSource(DecodedSource):
    """Samples of a dataset of arrays.

    Attributes:
        counts: int64 [B], number of images of each that are wanted.
        array: its images; None if they are not wanted.
        store: its texts.
        verify: whether both are compared with their checksums.
    """

    counts: Int64
    array: ImageArray | None
    store: ArrayStore
    verify: bool
    before = 0
    interleaved = True

    def texts(self, slots: Int64, texts: BatchTextMembers) -> Iterator[memoryview]:
        offsets = self.columns.member_offset[texts.members]
        return cut_texts(self.store.texts, texts, offsets - texts.edges[:-1])

    def images(self, slots: Int64, texts: BatchTextMembers) -> Int64:
        assert self.array is not None
        first: Int64 = self.columns.sample_image[self.samples[slots]]
        return first * self.array.size

    def placements(self, slot: int) -> Float64 | None:
        assert self.array is not None
        first = int(self.columns.sample_image[self.samples[slot]])
        found: Float64 = self.array.placements[first : first + int(self.counts[slot])]
        return found

    def damaged(self, slots: Int64, texts: BatchTextMembers) -> dict[int, str]:
        if not self.verify:
            return {}
        found = {}
        if self.array is not None:
            first, counts = self.columns.sample_image[self.samples[slots]], self.counts[slots]
            images = ranges(first, counts)
            if bad := self.array.damaged(images):
                owners = dict(zip(images.tolist(), np.repeat(slots, counts).tolist(), strict=True))
                reason = f"its image in {IMAGES} is not the one that was written; {_REMEDY}"
                found = {owners[image]: reason for image in bad}
        for member in self.store.damaged(self.columns, texts.members).tolist():
            index = int(np.flatnonzero(texts.members == member)[0])
            owner = int(np.searchsorted(texts.bounds, index, side="right")) - 1
            found[int(slots[owner])] = (
                f"its text in {TEXTS} is not the one that was written; {_REMEDY}"
            )
        return found


def cut_texts(data: UInt8, texts: BatchTextMembers, shift: Int64) -> Iterator[memoryview]:
    """Return the bytes of each text; `shift` is their offset in `data` less that in `texts`."""
    begins: Int64 = texts.edges[:-1] + shift
    stops: Int64 = texts.edges[1:] + shift
    view = data.data
    return (view[a:b] for a, b in zip(begins.tolist(), stops.tolist(), strict=True))
