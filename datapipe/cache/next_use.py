"""Eviction by the next use, which the plan knows."""

from __future__ import annotations

import heapq

from datapipe.cache.policy import NEVER


class NextUse:
    """Policy that keeps the samples that are used next.

    A sample that is used later than all kept ones is not cached, so a single pass does not flush
    the cache. Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage
    computer", IBM Systems Journal 5(2), 1966; with bypass.

    Args:
        budget: bytes.
    """

    keeps = "samples that are used next"
    plans_ahead = True

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
