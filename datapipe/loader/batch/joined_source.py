"""Samples of several datasets of arrays, taken many at a time as if they were of one.

Python's work for each dataset would take longer than the copies of its few images of a batch. So
images and texts of all are taken by their addresses (`index/files/memory.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from datapipe.array_types import Bools, Float64, Int64
from datapipe.index.files.memory import START, memory_of
from datapipe.loader.batch.decoded_source import (
    BatchTextMembers,
    DecodedSource,
    MappedSource,
    cut_texts,
)
from datapipe.plan.ragged import ranges
from datapipe.store.joined_arrays import JoinedArrays

_BYTES, _FLAGS = np.dtype(np.uint8), np.dtype(np.bool_)


@dataclass(frozen=True, slots=True)
class JoinedSource(DecodedSource):
    """Samples of a batch that are in arrays of a mixture. Images of all have one size.

    Attributes:
        counts: int64 [B], number of images of each that are wanted.
        arrays: of the mixture.
        kinds: int64 [B], dataset of each sample.
        size: values of an image; 0 if they are not wanted.
        verify: whether texts and images are compared with their checksums.
    """

    counts: Int64
    arrays: JoinedArrays
    kinds: Int64
    size: int
    verify: bool
    before = 0
    interleaved = True

    @staticmethod
    def of(
        arrays: JoinedArrays, samples: Int64, chosen: Bools, counts: Int64, *, verify: bool
    ) -> JoinedSource | None:
        """Return the chosen samples that are in arrays; None if there is none."""
        kinds, slots = arrays.find(samples, chosen)
        if not slots.any():
            return None
        # Of a dataset without images no image is taken.
        images = [arrays.dataset(number).images for number in np.unique(kinds[slots]).tolist()]
        size = max(0 if array is None else array.size for array in images)
        data = memory_of(_BYTES) if size else None
        return JoinedSource(
            slots, arrays.columns, samples, data, counts, arrays, kinds, size, verify
        )

    def texts(self, slots: Int64, texts: BatchTextMembers) -> Iterator[memoryview]:
        owners = np.repeat(self.kinds[slots], np.diff(texts.bounds))
        starts = (
            self.arrays.addresses(owners)[1] - START + self.columns.member_offset[texts.members]
        )
        return cut_texts(memory_of(_BYTES), texts, starts - texts.edges[:-1])

    def images(self, slots: Int64, texts: BatchTextMembers) -> Int64:
        kinds = self.kinds[slots]
        first = self.columns.sample_image[self.samples[slots]]
        first -= self.arrays.columns.image_edges[kinds]
        starts: Int64 = self.arrays.addresses(kinds)[0] - START + first * self.size
        return starts

    def placements(self, slot: int) -> Float64 | None:
        part = self._part(int(self.kinds[slot]))
        return None if part.array is None else part.placements(slot)

    def damaged(self, slots: Int64, texts: BatchTextMembers) -> dict[int, str]:
        if not self.verify or self._were_compared(slots, texts):
            return {}
        found: dict[int, str] = {}
        kinds = self.kinds[slots]
        for number in np.unique(kinds).tolist():
            part, own = self._part(number), slots[kinds == number]
            members = BatchTextMembers.none(len(own))
            if len(texts.members):
                members = BatchTextMembers.of(part.columns, part.samples[own])
            found |= part.damaged(own, members)
        return found

    def _were_compared(self, slots: Int64, texts: BatchTextMembers) -> bool:
        """Return whether all images and texts of some slots were compared before."""
        kinds, flags = self.kinds[slots], memory_of(_FLAGS)
        columns = self.arrays.columns
        owners = np.repeat(kinds, np.diff(texts.bounds))
        places = self.arrays.addresses(owners)[3] - START - columns.member_edges[owners]
        if not flags[places + texts.members].all():
            return False
        if not self.size:
            return True
        counts = self.counts[slots]
        images = ranges(columns.sample_image[self.samples[slots]], counts)
        owners = np.repeat(kinds, counts)
        places = self.arrays.addresses(owners)[2] - START - columns.image_edges[owners]
        return bool(flags[places + images].all())

    def _part(self, number: int) -> MappedSource:
        held = self.arrays.dataset(number)
        array = held.images
        return MappedSource(
            self.slots & (self.kinds == number),
            held.columns,
            self.samples - held.first,
            None if array is None else array.data,
            self.counts,
            array,
            held.texts,
            self.verify,
        )
