"""Samples that tiers of fixed size keep, and the index of each entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from datapipe.array_types import Int64
from datapipe.plan.order import Permutation

ALIGNMENT = 64
"""Bytes of a cache line, as vector instructions prefer."""

_STEP = 1 << 16  # samples that are looked at together


class EntryLayout:
    """Fixed part of a dataset, drawn evenly, and the offsets of its consecutive entries.

    It follows from the arguments alone, so every process that has them agrees, and nothing has to
    be kept about other samples. In a full pass over a permutation each sample is used once, so no
    choice can serve more than the part that fits. This one serves just that, at an even rate over
    the epoch.

    Args:
        count: samples that take part.
        sizes: bytes of the entries of some of them: int64 [n] in, int64 [n] out.
        budget: bytes that all entries may take.
        key: of the draw.
        first, stop: range of the draw, for tiers that share one draw. None is no limit.
        alignment: of entries, in bytes.

    Attributes:
        kept: number of samples with an entry.
        first: position of the first of these in the draw.
        bytes: size of all entries.
        offsets: int64 [kept + 1], of the entries.
    """

    def __init__(
        self,
        count: int,
        sizes: Callable[[Int64], Int64],
        budget: int,
        key: int,
        *,
        first: int = 0,
        stop: int | None = None,
        alignment: int = ALIGNMENT,
    ) -> None:
        self._order = Permutation(max(count, 1), key)
        self.first = first
        last = count if stop is None else min(count, stop)
        parts, total = [np.zeros(1, np.int64)], 0
        for start in range(first, last, _STEP):
            chosen = self._order(np.arange(start, min(start + _STEP, last)))
            ends = total + np.cumsum(-(-sizes(chosen) // alignment) * alignment)
            fitting = int(np.searchsorted(ends, budget, side="right"))
            parts.append(ends[:fitting])
            if fitting:
                total = int(ends[fitting - 1])
            if fitting < len(ends):
                break
        self.offsets: Int64 = np.concatenate(parts)
        self.kept = len(self.offsets) - 1
        self.bytes = total

    def places(self, samples: Int64) -> Int64:
        """Return the index of the entry of each sample, -1 for none: int64 [n] in and out."""
        found = self._order.inverse(samples) - self.first
        return np.where((found >= 0) & (found < self.kept), found, -1)


class Use(NamedTuple):
    """Use of one sample, and the index of its entry in tiers of fixed size.

    Attributes:
        next: its next use, as `NextUse` compares it.
        memory, disk, text: index of its entry in these tiers, -1 for none.
    """

    sample: int
    next: int = 0
    memory: int = -1
    disk: int = -1
    text: int = -1


@dataclass(frozen=True, slots=True)
class Uses:
    """Uses of the samples of a batch: int64 [n] each, see `Use`.

    Looking an index up takes 30 µs for one sample and little more for all.
    """

    samples: Int64
    next: Int64
    memory: Int64
    disk: Int64
    text: Int64

    def __getitem__(self, slot: int) -> Use:
        """Return the use of the sample in a slot."""
        return Use(
            int(self.samples[slot]),
            int(self.next[slot]),
            int(self.memory[slot]),
            int(self.disk[slot]),
            int(self.text[slot]),
        )
