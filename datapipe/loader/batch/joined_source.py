"""Samples of several datasets of arrays, taken many at a time as if they were of one.

Python's work for each dataset would take longer than the copies of its few images of a batch. So
images and texts of all are found by a kernel, and taken by their addresses
(`index/files/joined_kernel.py`). Where it is not loaded, and where something is read for the first
time and has to be compared, there is a `MappedSource` of each dataset instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from datapipe.array_types import Bools, Float64, Int64
from datapipe.index.files.memory import memory
from datapipe.index.files.mixture_column import KERNEL
from datapipe.loader.batch.decoded_source import (
    BatchTextMembers,
    DecodedSource,
    cut_texts,
    text_kinds,
)
from datapipe.plan.ragged import edges, places
from datapipe.store.mixture_arrays import MixtureArrays

_TEXTS = 4  # of a sample, for which there is room at first


@dataclass(frozen=True, slots=True)
class JoinedSource(DecodedSource):
    """Samples of a batch that are in arrays of a mixture. Images of all have one size.

    Attributes:
        counts: int64 [B], number of images of each that are wanted.
        arrays: of the mixture.
        starts: int64 [B + 1], index in memory of the first image of each.
        bounds: int64 [B + 1]; sample i has the texts `bounds[i]` to `bounds[i + 1]`.
        found: int64 [4, T], of each text its number among the members, its index in memory, its
            bytes, and the code of its extension.
    """

    counts: Int64
    arrays: MixtureArrays
    starts: Int64
    bounds: Int64
    found: Int64
    before = 0
    interleaved = True

    @staticmethod
    def of(
        arrays: MixtureArrays, samples: Int64, chosen: Bools, counts: Int64, *, verify: bool
    ) -> JoinedSource | None:
        """Return the chosen samples that are in arrays.

        None if there is none, or they cannot be found so.
        """
        if KERNEL.module is None:
            KERNEL.count(len(samples))
            return None
        columns = arrays.columns
        slots, at = np.empty(len(samples), bool), np.empty((2, len(samples) + 1), np.int64)
        room, number = 0, _TEXTS * len(samples)
        while number > room:
            room = number
            found = np.empty((4, room), np.int64)
            number = KERNEL.module.locate(
                *(samples, counts, chosen, *columns.tables),
                *(text_kinds(columns.extensions)[0], arrays.places, arrays.size, verify),
                *(memory(), slots, at, found),
            )
        if number < 0 or not slots.any():
            return None
        data = memory()[3] if arrays.size else None
        return JoinedSource(
            slots, columns, samples, data, counts, arrays, at[0], at[1], found[:, :number]
        )

    def members(self, slots: Int64) -> BatchTextMembers:
        chosen, bounds = self._texts(slots)
        members, _, sizes, codes = self.found[:, chosen]
        kinds = text_kinds(self.columns.extensions)[1]
        return BatchTextMembers(
            members, bounds, edges(sizes), [kinds[code] for code in codes.tolist()]
        )

    def texts(self, slots: Int64, texts: BatchTextMembers) -> Iterator[memoryview]:
        if not len(texts.members):
            return iter(())
        starts = self.found[1, self._texts(slots)[0]]
        return cut_texts(memory()[3], texts, starts - texts.edges[:-1])

    def images(self, slots: Int64, texts: BatchTextMembers) -> Int64:
        return self.starts[slots]

    def placements(self, slot: int) -> Float64 | None:
        sample = int(self.samples[slot])
        held = self.arrays.dataset(self.arrays.number(sample))
        if held.images is None:
            return None
        first = int(held.columns.sample_image[sample - held.first])
        found: Float64 = held.images.placements[first : first + int(self.counts[slot])]
        return found

    def _texts(self, slots: Int64) -> tuple[Int64 | slice, Int64]:
        """Return the indices of the texts of some slots, and the bounds of each slot's."""
        if len(slots) == len(self.samples):
            return slice(None), self.bounds
        return places(self.bounds, slots)
