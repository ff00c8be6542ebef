"""Eviction by the next use, which the plan knows."""

from __future__ import annotations

import heapq

from datapipe.cache.policy import NEVER


class NextUse:
    """Policy that keeps the samples that are used next, within a budget of bytes.

    A sample that is used later than all kept ones is not cached, so a single pass does not flush
    the cache. Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage
    computer", IBM Systems Journal 5(2), 1966; with bypass.
    """

    keeps = "samples that are used next"
    plans_ahead = True

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.bytes = 0
        self._kept: dict[int, tuple[int, int]] = {}  # next use and bytes, by sample
        self._heap: list[tuple[int, int]] = []  # latest use first; some are out of date

    def __contains__(self, sample: int) -> bool:
        return sample in self._kept

    def use(self, sample: int, next_use: int) -> None:
        _, size = self._drop(sample)
        if next_use < NEVER:
            self._keep(sample, next_use, size)

    def offer(self, sample: int, size: int, next_use: int) -> tuple[bool, list[int]]:
        if not self.would_keep(sample, size, next_use):
            return False, []
        going: dict[int, tuple[int, int]] = {}
        while self.bytes + size > self.budget:
            latest = self._latest()
            if latest is None or latest[0] <= next_use:
                for other, entry in going.items():  # not cached: nothing is evicted
                    self._keep(other, *entry)
                return False, []
            going[latest[1]] = self._drop(latest[1])
        self._keep(sample, next_use, size)
        return True, list(going)

    def would_keep(self, sample: int, size: int, next_use: int) -> bool:
        if next_use >= NEVER or size > self.budget or sample in self._kept:
            return False
        if self.bytes + size <= self.budget:
            return True
        latest = self._latest()
        return latest is not None and latest[0] > next_use

    def _keep(self, sample: int, next_use: int, size: int) -> None:
        self._kept[sample] = next_use, size
        self.bytes += size
        heapq.heappush(self._heap, (-next_use, sample))
        # Outdated items are dropped only at the top of the heap, which they may never reach.
        if len(self._heap) > 64 + 4 * len(self._kept):
            self._heap = [(-use, kept) for kept, (use, _) in self._kept.items()]
            heapq.heapify(self._heap)

    def _drop(self, sample: int) -> tuple[int, int]:
        entry = self._kept.pop(sample)
        self.bytes -= entry[1]
        return entry

    def _latest(self) -> tuple[int, int] | None:
        """Return next use and number of the sample whose next use is the latest."""
        while self._heap:
            use, sample = -self._heap[0][0], self._heap[0][1]
            if sample in self._kept and self._kept[sample][0] == use:
                return use, sample
            heapq.heappop(self._heap)
        return None
