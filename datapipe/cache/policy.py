"""Protocol of eviction policies, and a trial of what each will serve."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

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


class Policy(Protocol):
    """Choice of the entries that a tier keeps within a budget."""

    keeps: str  # phrase about the samples that it keeps, for the log
    plans_ahead: bool  # whether it needs the next use of each sample

    def __contains__(self, sample: int) -> bool: ...

    def use(self, sample: int, next_use: int) -> None:
        """Record the use of a kept sample, and its next use; it may be dropped then."""

    def offer(self, sample: int, size: int, next_use: int) -> tuple[bool, list[int]]:
        """Return whether a new sample is kept, and the samples that are evicted for it."""

    def would_keep(self, sample: int, size: int, next_use: int) -> bool:
        """Return whether the sample would be kept if it were offered now."""


@lru_cache
def expected_hits(policy: Callable[[int], Policy], part: float, ranks: int) -> float | None:
    """Return the share of a rank's reads that a policy serves once the cache is full, 0 to 1.

    It is measured on a small dataset; None for more than `MOST_RANKS` ranks. The share depends only
    on the part of the dataset that fits, and on the number of ranks that share an epoch, each with
    a cache of its own.
    """
    if ranks > MOST_RANKS:
        return None
    samples = _READS * ranks
    rng = np.random.default_rng(_SEED)
    orders = [rng.permutation(samples)[:_READS] for _ in range(_EPOCHS + AHEAD)]
    uses = np.full((_EPOCHS + AHEAD, samples), NEVER - 1)
    for epoch, order in enumerate(orders):
        uses[epoch, order] = epoch * _READS + np.arange(_READS)
    cache = policy(round(part * samples))
    served = 0
    for epoch, order in enumerate(orders[:_EPOCHS]):
        following = uses[epoch + 1 : epoch + 1 + AHEAD, order].min(axis=0)
        for sample, then in zip(order.tolist(), following.tolist(), strict=True):
            if sample in cache:
                cache.use(sample, then)
                served += epoch >= _EPOCHS - _COUNTED
            else:
                cache.offer(sample, 1, then)
    return served / (_COUNTED * _READS)
