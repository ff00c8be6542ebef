"""Cache of samples before any random change, and the figures of its tiers."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from datapipe.array_types import Bools, Int64, UInt8
from datapipe.cache.entries import EntrySizes
from datapipe.cache.layout import sample_draw
from datapipe.cache.tier import InPlace, Tier, Use, Uses

logger = logging.getLogger(__name__)

SOURCE = "source"
"""Name of the source of entries among those of the tiers."""

Counts = Counter[tuple[str, str]]
"""Numbers by tier and by field of `TierStats`."""


@dataclass(frozen=True, kw_only=True)
class TierStats:
    """Figures of one tier."""

    hits: int = 0  # samples that it served
    bytes: int = 0  # size of these
    kept: int = 0  # samples that were put there
    evicted: int = 0  # samples that made room for others
    # Share of reads that it will serve once it is filled, in a run over the whole dataset; None if
    # that is not known, and for the source
    expected: float | None = None
    stalls: int = 0  # samples of a remote source for which a worker waited
    stalled: float = 0.0  # seconds that workers waited for these, together


class TierCounter:
    """Counters of tiers, for all threads of a process. A copy in another process starts at zero."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counts = Counter()

    def __reduce__(self) -> tuple[object, ...]:
        return TierCounter, ()

    def count(self, tier: str, **numbers: int) -> None:
        """Add to counters of a tier, by field of `TierStats`."""
        with self._lock:
            for field, number in numbers.items():
                self._counts[tier, field] += number

    def take(self) -> Counts:
        with self._lock:
            taken, self._counts = self._counts, Counter()
        return taken

    def add(self, counts: Counts) -> None:
        with self._lock:
            self._counts.update(counts)

    def stats(self, tier: str, *, evicted: int = 0, expected: float | None = None) -> TierStats:
        with self._lock:
            counts = self._counts.copy()
        numbers = {field: counts[tier, field] for field in ("hits", "bytes", "kept", "stalls")}
        seconds = counts[tier, "stalled"] / 1e9
        return TierStats(**numbers, stalled=seconds, evicted=evicted, expected=expected)


class HitLog:
    """Log line at the end of each epoch: the share that each tier served, beside the expected one.

    Steps that are prepared ahead count with the epoch in which they are prepared.
    """

    def __init__(self, stats: Callable[[], Mapping[str, TierStats]]) -> None:
        self._stats = stats
        self._before = dict(stats())
        self._epoch: int | None = None

    def note(self, epoch: int | None) -> None:
        """Take notice of a batch's epoch; None after the last batch of a run."""
        if epoch == self._epoch:
            return
        ended, self._epoch = self._epoch, epoch
        if ended is None:
            return
        before, self._before = self._before, dict(self._stats())
        hits = {name: tier.hits - before[name].hits for name, tier in self._before.items()}
        total = sum(hits.values())
        if not total:
            return
        parts = []
        for name, tier in self._before.items():
            expected = "" if tier.expected is None else f" (expected {tier.expected:.1%})"
            parts.append(f"{name} {hits[name] / total:.1%}{expected}")
        logger.info("epoch %d: %d samples came from %s", ended, total, ", ".join(parts))


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
