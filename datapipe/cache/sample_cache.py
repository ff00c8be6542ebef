"""Cache of samples before any random change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from datapipe.array_types import Bools, Int64, UInt8
from datapipe.cache.entries import EntrySizes
from datapipe.cache.layout import sample_draw
from datapipe.cache.stats import SOURCE, TierCounter, TierStats
from datapipe.cache.tier import InPlace, Tier, Use, Uses


class SampleCache:
    """Tiers that are asked for an entry one after the other, the fastest first.

    `texts` caches those of samples whose images stay on the device.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        *,
        samples: int,
        sizes: EntrySizes,
        texts: SampleCache | None = None,
    ) -> None:
        self._tiers = tuple(tiers)
        self._draw = sample_draw(samples)
        self.sizes = sizes
        self.texts = texts
        self.keep_decoded = sizes.form == "decoded"
        self.plans_ahead = any(tier.plans_ahead for tier in tiers)
        self.counter = TierCounter()

    def uses(self, samples: Int64, next_use: Int64 | None = None) -> Uses:
        """Return the uses of the samples of a batch, for the methods below."""
        following = np.zeros_like(samples) if next_use is None else next_use
        return Uses(samples, self._draw.inverse(samples), following)

    def holds(self, samples: Int64) -> Bools:
        """Return whether a tier seems to have the entry of each sample just now: bool [n]."""
        uses, held = self.uses(samples), np.zeros(len(samples), bool)
        for tier in self._tiers:
            held |= tier.holds(uses)
        return held

    def in_place(self, uses: Uses, wanted: Bools) -> Iterator[InPlace]:
        """Yield wanted entries that are read where they are, each once. They count as read."""
        for tier in self._tiers:
            found = tier.in_place(uses, wanted)
            if found is not None:
                there = found.starts >= 0
                self.counter.count(tier.name, hits=int(there.sum()), bytes=found.bytes)
                wanted = wanted & ~there
                yield found

    def get(self, use: Use) -> UInt8 | None:
        """Return the entry of a sample from the fastest tier that has it, for reading."""
        for index, tier in enumerate(self._tiers):
            entry = tier.get(use)
            if entry is not None:
                self.counter.count(tier.name, hits=1, bytes=len(entry))
                self._put(self._tiers[:index], use, entry)
                return entry
        self.counter.count(SOURCE, hits=1)
        return None

    def room(self, use: Use, size: int) -> UInt8 | None:
        """Return memory for the entry of a sample; None if no tier would keep it."""
        rooms = (tier.room(use, size) for tier in self._tiers)
        return next((room for room in rooms if room is not None), None)

    def put(self, use: Use, entry: UInt8) -> None:
        """Keep an entry that was written to the memory that `room` returned."""
        self._put(self._tiers, use, entry)

    def stats(self) -> dict[str, TierStats]:
        stats = {
            tier.name: self.counter.stats(tier.name, evicted=tier.evicted, expected=tier.expected)
            for tier in self._tiers
        }
        return stats | {SOURCE: self.counter.stats(SOURCE)}

    def describe(self) -> list[str]:
        return [expect(tier.describe(self.sizes.form), tier.expected) for tier in self._tiers]

    def _put(self, tiers: Sequence[Tier], use: Use, entry: UInt8) -> None:
        for tier in tiers:
            if tier.put(use, entry):
                self.counter.count(tier.name, kept=1)


def expect(kept: str, share: float | None) -> str:
    """Add the expected share of reads to a phrase about what is kept."""
    return kept if share is None else f"{kept}, which will serve {share:.1%} of reads"
