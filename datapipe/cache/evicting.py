"""Entries in the memory of one process that come and go, as an eviction policy says."""

from __future__ import annotations

import threading

import numpy as np

from datapipe.array_types import Bools, UInt8
from datapipe.cache.policy import Policy, expected_hits
from datapipe.cache.tier import Tier, TierRequest, Use, Uses

_LOOKED_AT = 1000  # samples, for the size of all


class EvictingTier(Tier):
    """Entries that a policy keeps and evicts, for the threads of one process.

    An entry that was returned stays valid while it is referred to, also after its eviction.
    """

    name = "memory"

    def __init__(self, policy: Policy, *, expected: float | None = None) -> None:
        self._policy = policy
        self.plans_ahead = policy.plans_ahead
        self.expected = expected
        self._entries: dict[int, UInt8] = {}
        self._lock = threading.Lock()

    def describe(self, form: str) -> str:
        return f"{self._policy.keeps} {form} in memory"

    def holds(self, uses: Uses) -> Bools:
        return np.array([sample in self._entries for sample in uses.samples.tolist()], bool)

    def get(self, use: Use) -> UInt8 | None:
        with self._lock:
            entry = self._entries.get(use.sample)
            if entry is not None:
                self._policy.use(use.sample, use.next)
                if use.sample not in self._policy:
                    del self._entries[use.sample]
            return entry

    def room(self, use: Use, size: int) -> UInt8 | None:
        with self._lock:
            kept = self._policy.would_keep(use.sample, size, use.next)
        return np.empty(size, np.uint8) if kept else None

    def put(self, use: Use, entry: UInt8) -> bool:
        with self._lock:
            kept, going = self._policy.offer(use.sample, len(entry), use.next)
            for other in going:
                del self._entries[other]
            self.evicted += len(going)
            if kept:
                self._entries[use.sample] = entry
            return kept


def evicting_tier(request: TierRequest) -> EvictingTier | None:
    if request.spec.memory is None or request.policy is None:
        return None
    budget, samples = int(request.spec.memory), len(request.dataset)
    spread = np.linspace(0, samples - 1, min(samples, _LOOKED_AT)).astype(np.int64)
    mean = float(request.sizes(spread).mean())
    part = min(1.0, budget / max(mean * samples, 1.0))
    expected = expected_hits(request.policy, round(part, 3), request.ranks)
    return EvictingTier(request.policy(budget), expected=expected)
