"""Samples that tiers of fixed size keep, and the offset of each entry."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from datapipe.array_types import Bools, Int64, UInt64
from datapipe.plan.order import Permutation
from datapipe.progress import readable_size

ALIGNMENT = 64
"""Bytes of a cache line, as vector instructions prefer."""

_KEY = 0x6361636865
_STEP = 1 << 16  # samples that are looked at together


def sample_draw(count: int) -> Permutation:
    """Return the draw of the samples of a dataset, equal in all ranks and processes.

    Each tier of fixed size keeps samples at consecutive positions of it.
    """
    return Permutation(max(count, 1), _KEY)


class EntryLayout:
    """Fixed part of a dataset, drawn evenly, and the offsets of its consecutive entries.

    It follows from the arguments alone, so every process that has them agrees, and nothing has to
    be kept about other samples. In a full pass over a permutation each sample is used once, so no
    choice can serve more than the part that fits. This one serves just that, at an even rate over
    the epoch.

    `sizes` maps samples, int64 [n], to bytes. `first` to `stop` is the range of the draw, for tiers
    that share it. `kept` samples have an entry; the entries take `bytes` together and begin at
    `offsets`, int64 [kept + 1], with this alignment in bytes.
    """

    def __init__(
        self,
        count: int,
        sizes: Callable[[Int64], Int64],
        budget: int,
        *,
        first: int = 0,
        stop: int | None = None,
        alignment: int = ALIGNMENT,
    ) -> None:
        self._draw = sample_draw(count)
        self.count = count
        self.first = first
        last = count if stop is None else min(count, stop)
        parts, total = [np.zeros(1, np.int64)], 0
        for start in range(first, last, _STEP):
            chosen = self._draw(np.arange(start, min(start + _STEP, last)))
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
        return self.indices(self._draw.inverse(samples))

    def indices(self, positions: Int64) -> Int64:
        """Return the index of the entry at each position of the draw, -1 for none: int64 [n]."""
        found = positions - self.first
        return np.where((found >= 0) & (found < self.kept), found, -1)

    def marked(self, positions: Int64, marks: UInt64) -> tuple[Int64, Bools]:
        """Return `indices`, and whether the entry at each has a mark that is not 0: bool [n]."""
        indices = self.indices(positions)
        held = indices >= 0
        held[held] = marks[indices[held]] != 0
        return indices, held

    def index(self, position: int) -> int:
        """Return the index of the entry at a position of the draw, -1 for none."""
        return position - self.first if 0 <= position - self.first < self.kept else -1

    @property
    def share(self) -> float:
        """Share of the samples with an entry."""
        return self.kept / max(self.count, 1)

    def describe(self, form: str, *, unit: int = 1) -> str:
        """Return a phrase about the samples with an entry; sizes are in units of `unit` bytes."""
        size = readable_size(self.bytes * unit)
        return f"{self.kept:,} of {self.count:,} samples ({size}) {form}"
