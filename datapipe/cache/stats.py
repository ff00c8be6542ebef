"""Figures of the tiers of a cache: counters, public figures, a log line per epoch."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
