"""Eviction policies: by the next use, which the plan knows, and by the last use.

The share of reads that a policy will serve is known before the first one.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from functools import lru_cache
from typing import Literal

import numpy as np

NEVER = 2**62
"""Next use of a sample that is not used again as far as is known."""

AHEAD = 6
"""Epochs that are planned ahead. If each of eight ranks holds an eighth of the data, the cache
serves 0.12 of the reads with one epoch, 0.23 with two, 0.41 with four, 0.42 with six or more."""

MOST_RANKS = 128
"""Most ranks for which the trial of a policy is worth its time."""

_READS = 256  # of a rank per epoch of the trial
_EPOCHS, _COUNTED = 20, 8  # of the trial, and those at its end that count
_SEED = 1


class NextUse:
    """Policy that keeps the samples that are used next.

    A sample that is used later than all kept ones is not cached, so a single pass does not flush
    the cache. Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage
    computer", IBM Systems Journal 5(2), 1966; with bypass.

    Args:
        budget: bytes.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._kept: dict[int, tuple[int, int]] = {}  # next use and bytes, by sample
        self._heap: list[tuple[int, int]] = []  # latest use first; some are out of date
        self.bytes = 0

    def use(self, sample: int, next_use: int) -> None:
        """Record the use of a kept sample, and its next use."""
        _, size = self._kept[sample]
        if next_use >= NEVER:
            del self._kept[sample]
            self.bytes -= size
            return
        self._kept[sample] = next_use, size
        heapq.heappush(self._heap, (-next_use, sample))
        self._tidy()

    def offer(self, sample: int, size: int, next_use: int) -> tuple[bool, list[int]]:
        """Return whether a new sample is kept, and the samples that are evicted for it."""
        if next_use >= NEVER or size > self.budget or sample in self._kept:
            return False, []
        going: dict[int, tuple[int, int]] = {}
        freed = 0
        while self.bytes - freed + size > self.budget:
            latest = self._latest()
            if latest is None or latest[0] <= next_use:
                for other, entry in going.items():  # not cached: nothing is evicted
                    self._kept[other] = entry
                    heapq.heappush(self._heap, (-entry[0], other))
                return False, []
            heapq.heappop(self._heap)
            # At once: a sample that was used twice before the same use is in the heap twice.
            going[latest[1]] = self._kept.pop(latest[1])
            freed += going[latest[1]][1]
        self.bytes += size - freed
        self._kept[sample] = next_use, size
        heapq.heappush(self._heap, (-next_use, sample))
        return True, list(going)

    def would_keep(self, sample: int, size: int, next_use: int) -> bool:
        """Return whether the sample would be kept if it were offered now."""
        if next_use >= NEVER or size > self.budget or sample in self._kept:
            return False
        if self.bytes + size <= self.budget:
            return True
        latest = self._latest()
        return latest is not None and latest[0] > next_use

    def __contains__(self, sample: int) -> bool:
        return sample in self._kept

    def _latest(self) -> tuple[int, int] | None:
        """Return next use and number of the sample whose next use is the latest."""
        while self._heap:
            use, sample = -self._heap[0][0], self._heap[0][1]
            entry = self._kept.get(sample)
            if entry is not None and entry[0] == use:
                return use, sample
            heapq.heappop(self._heap)
        return None

    def _tidy(self) -> None:
        # Outdated items are dropped only at the top of the heap, which they may never reach.
        if len(self._heap) > 64 + 4 * len(self._kept):
            self._heap = [(-use, sample) for sample, (use, _) in self._kept.items()]
            heapq.heapify(self._heap)


class Lru:
    """Policy that keeps the samples that were used last, for comparison.

    Args:
        budget: bytes.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._kept: OrderedDict[int, int] = OrderedDict()  # bytes by sample, used longest ago first
        self.bytes = 0

    def use(self, sample: int, next_use: int) -> None:
        """Record the use of a kept sample."""
        self._kept.move_to_end(sample)

    def offer(self, sample: int, size: int, next_use: int) -> tuple[bool, list[int]]:
        """Return whether a new sample is kept, and the samples that are evicted for it."""
        if size > self.budget or sample in self._kept:
            return False, []
        going = []
        while self.bytes + size > self.budget:
            other, freed = self._kept.popitem(last=False)
            self.bytes -= freed
            going.append(other)
        self._kept[sample] = size
        self.bytes += size
        return True, going

    def would_keep(self, sample: int, size: int, next_use: int) -> bool:
        """Return whether the sample would be kept if it were offered now."""
        return size <= self.budget and sample not in self._kept

    def __contains__(self, sample: int) -> bool:
        return sample in self._kept


@lru_cache
def expected_hits(
    policy: Literal["next-use", "lru"], part: float, ranks: int, ahead: int
) -> float | None:
    """Return the share of a rank's reads that a policy serves once the cache is full.

    It is measured on a small dataset. The share depends only on the part that fits and on the
    number of ranks among which each epoch is dealt anew.

    Args:
        part: of the dataset that fits.
        ranks: that share an epoch; each has a cache of its own.
        ahead: epochs whose plans are known.

    Returns:
        From 0 to 1; None for more than `MOST_RANKS` ranks.
    """
    if ranks > MOST_RANKS:
        return None
    samples = _READS * ranks
    rng = np.random.default_rng(_SEED)
    orders = [rng.permutation(samples)[:_READS] for _ in range(_EPOCHS + ahead)]
    uses = np.full((_EPOCHS + ahead, samples), -1, np.int64)
    for epoch, order in enumerate(orders):
        uses[epoch, order] = np.arange(_READS)
    budget = round(part * samples)
    cache: NextUse | Lru = NextUse(budget) if policy == "next-use" else Lru(budget)
    served = 0
    for epoch in range(_EPOCHS):
        following = uses[epoch + 1 : epoch + 1 + ahead]
        for sample in orders[epoch].tolist():
            later = np.flatnonzero(following[:, sample] >= 0)
            then = NEVER - 1
            if len(later):
                then = int(later[0]) * _READS + int(following[later[0], sample])
                then += (epoch + 1) * _READS
            if sample in cache:
                cache.use(sample, then)
                served += epoch >= _EPOCHS - _COUNTED
            else:
                cache.offer(sample, 1, then)
    return served / (_COUNTED * _READS)
