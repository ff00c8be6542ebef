"""Numbers that the random numbers of a mixture's samples depend on: other datasets change none."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from datapipe.array_types import Int64, UInt64
from datapipe.plan.units import Units


@dataclass(frozen=True)
class Identities:
    """Numbers of samples that other datasets of a mixture do not change.

    Examples:
        >>> identities = Identities(np.array([0, 5, 9]), np.array([100, 200], np.uint64))
        >>> identities(np.array([0, 4, 6])).tolist()
        [100, 104, 201]
    """

    edges: Int64  # int64 [datasets + 1], number of the first sample of each
    keys: UInt64  # uint64 [datasets], of the datasets' names

    def __call__(self, numbers: Int64) -> Int64:
        """Return those of samples, by their numbers in the mixture: int64 [n] in and out."""
        datasets = np.searchsorted(self.edges[:-1], numbers, side="right") - 1
        own = (numbers - self.edges[datasets]).astype(np.uint64)
        found = (own + self.keys[datasets]) & np.uint64(2**63 - 1)
        return found.view(np.int64)


@dataclass(frozen=True)
class RandomKeys:
    """Pass and identity of each sample of a step. They are worked out once one is asked for."""

    units: Units  # of a rank's step, with passes
    identities: Identities  # of samples

    def of(self, slot: int) -> tuple[int, int]:
        """Return pass and identity of the sample in a slot."""
        return self._all[slot]

    @functools.cached_property
    def _all(self) -> list[tuple[int, int]]:
        passes, identities = self.units.passes, self.identities(self.units.numbers)
        return list(zip(passes.tolist(), identities.tolist(), strict=True))
