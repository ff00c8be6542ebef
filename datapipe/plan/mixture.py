"""Order of a mixture: draws from several datasets at given rates, found without walking.

The k-th element of a dataset is placed at the time at which the dataset's ideal count, the integral
of its rate, is k + u, with u hashed from the dataset and k. Elements are taken in the order of
their times. This is jittered sampling (Cook: "Stochastic sampling in computer graphics", 1986) of
each dataset: up to any draw, its count differs from the ideal one by less than 1, and by what the
number of draws differs from their time. The order within is random, and depends on nothing that
was drawn before, so any stretch of it is found alone.

Only operations that IEEE 754 rounds exactly are used, so the order is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from datapipe.array_types import Float64, Int64, UInt64
from datapipe.plan.options import PlanOptions
from datapipe.plan.order import Permutation, ShardOrder
from datapipe.plan.ragged import grouped, ranges
from datapipe.plan.rng import STREAM, derive, mix_array

_ORDER = 1  # purpose of a derived key
_SLACK = 2  # draws; what rounding may move is far less

Order = Permutation | ShardOrder | Callable[[Int64], Int64]
"""Order of a pass: places to indices among the samples that take part."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates of D datasets over the draws of a run, in S segments; linear within each."""

    starts: Int64  # int64 [S], draw at which each segment begins; the first is 0
    # `first`, `last`: float64 [S, D], rates at the begin and at the end of each segment; those of
    # all datasets sum to 1. The last segment has no end, so both are equal there.
    first: Float64
    last: Float64

    def __post_init__(self) -> None:
        starts, first, last = self.starts, self.first, self.last
        assert (len(starts), first.shape) == (len(first), last.shape), "they are of one form"
        assert starts[0] == 0, "they begin at 0"
        assert (np.diff(starts) > 0).all(), "segments ascend"
        assert min(first.min(), last.min()) >= 0, "no rate is negative"
        assert np.allclose([first.sum(1), last.sum(1)], 1), "all rates together are 1"
        assert (first[-1] == last[-1]).all(), "the last segment, which has no end, is constant"

    def after(self, draw: int) -> Rates:
        """Return the rates from a draw on, which is draw 0 of them."""
        segment = int(np.searchsorted(self.starts, draw, side="right")) - 1
        first = self.first[segment:].copy()
        if segment + 1 < len(self.starts):
            length = int(self.starts[segment + 1] - self.starts[segment])
            passed = (draw - int(self.starts[segment])) / length
            first[0] += (self.last[segment] - self.first[segment]) * passed
        starts = np.maximum(self.starts[segment:] - draw, 0)
        return Rates(starts=starts, first=first, last=self.last[segment:])

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON has them."""
        return {name: values.tolist() for name, values in vars(self).items()}

    def same_until(self, other: Rates, draw: int) -> bool:
        """Return whether these rates are those of `other` up to a draw."""
        ends = []
        for rates in (self, other):
            count = int(np.searchsorted(rates.starts, draw))
            slopes = (rates.first != rates.last).any(1)
            # Of a segment that is constant it does not matter where it ends.
            stops = [int(rates.starts[n + 1]) if slopes[n] else 0 for n in range(count)]
            parts = rates.starts[:count], rates.first[:count], rates.last[:count]
            ends.append((stops, *(part.tolist() for part in parts)))
        return ends[0] == ends[1]


class Interleaving:
    """Order in which datasets with these rates are drawn from; each has a 64-bit key."""

    def __init__(self, rates: Rates, keys: Sequence[int]) -> None:
        self.rates = rates
        self._keys: UInt64 = np.array(keys, np.uint64)
        lengths = np.diff(rates.starts).astype(np.float64)
        # [S, D], so that one segment is one row.
        self._slope = np.zeros_like(rates.first)
        self._slope[:-1] = (rates.last[:-1] - rates.first[:-1]) / lengths[:, None]
        areas = (rates.first[:-1] + rates.last[:-1]) * (lengths[:, None] / 2)
        self._before = np.concatenate([np.zeros((1, len(keys))), np.cumsum(areas, axis=0)])

    def draws(self, start: int, stop: int) -> tuple[Int64, Int64]:
        """Return the datasets of some draws, and their turns there: int64 [stop - start] each."""
        if len(self._keys) == 1:  # nothing to interleave
            return np.zeros(stop - start, np.int64), np.arange(start, stop, dtype=np.int64)
        datasets, turns, first = self._sorted(start, stop)
        before = int(first.sum())
        span = slice(start - before, stop - before)
        return datasets[span], turns[span]

    def counts(self, draw: int) -> Int64:
        """Return the number of elements of each dataset among the first `draw` draws: int64 [D]."""
        if draw <= 0:
            return np.zeros(len(self._keys), np.int64)
        datasets, _, first = self._sorted(draw - 1, draw)
        drawn = datasets[: draw - int(first.sum())]
        return first + np.bincount(drawn, minlength=len(first))

    def ideal(self, start: int, stop: int) -> Float64:
        """Return the draws of each dataset that its rates ask for in a stretch: float64 [D]."""
        return self._ideal(stop) - self._ideal(start)

    def _sorted(self, start: int, stop: int) -> tuple[Int64, Int64, Int64]:
        """Return datasets and turns of elements in order, among which are all of some draws.

        The third value is the first turn of each dataset; elements before it are drawn before
        `start`.
        """
        first, last = self._around(start, stop)
        counts = last - first
        datasets = np.repeat(np.arange(len(counts)), counts)
        turns = ranges(first, counts)
        # Equal times are ordered by dataset and turn: the sort is stable.
        order = np.argsort(self._times(datasets, turns), kind="stable")
        return datasets[order], turns[order], first

    def _around(self, start: int, stop: int) -> tuple[Int64, Int64]:
        """Return, for each dataset, a range of turns that has all of its turns in some draws.

        All turns below the ranges are drawn before `start`: up to a time t there are t - D to
        t + D elements, and an element is within 1 of its place in the ideal count.
        """
        margin = len(self._keys) + _SLACK
        first = np.floor(self._ideal(max(0, start - margin))).astype(np.int64) - 1
        last = np.ceil(self._ideal(stop + margin)).astype(np.int64) + 2
        return np.maximum(first, 0), last

    def _ideal(self, time: int) -> Float64:
        """Return the ideal count of each dataset up to a time: float64 [D]."""
        segment = int(np.searchsorted(self.rates.starts, time, side="right")) - 1
        passed = float(time - int(self.rates.starts[segment]))
        found: Float64 = self._before[segment] + passed * (
            self.rates.first[segment] + self._slope[segment] * (passed / 2)
        )
        return found

    def _times(self, datasets: Int64, turns: Int64) -> Float64:
        """Return the times of elements; infinite for those that never come."""
        hashed = mix_array(self._keys[datasets] + turns.astype(np.uint64) * STREAM)
        # 52 bits and a half, so that the fraction is inside (0, 1).
        counts = turns + ((hashed >> np.uint64(12)) + 0.5) * 2.0**-52
        segments = np.zeros(len(turns), np.int64)
        for before in self._before[1:]:
            segments += counts >= before[datasets]
        rate = self.rates.first[segments, datasets]
        slope = self._slope[segments, datasets]
        rest = counts - self._before[segments, datasets]
        root = np.sqrt(np.maximum(rate * rate + 2 * slope * rest, 0))
        with np.errstate(divide="ignore"):
            passed = 2 * rest / (rate + root)
        times: Float64 = self.rates.starts[segments] + passed
        return times


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """Place of a dataset in its own order, from which turns are counted."""

    number: int = 0  # of the pass
    place: int = 0  # in the pass
    samples: int = 0  # that took part in that pass; the next one may have others


class DatasetOrder:
    """Order of one dataset of a mixture, pass after pass. It depends on no other dataset.

    `key` is that of the dataset's name, 0 for a dataset that is given alone. `start` is the place
    of turn 0.
    """

    def __init__(
        self,
        samples: int,
        options: PlanOptions,
        *,
        key: int = 0,
        shards: npt.ArrayLike | None = None,
        start: Cursor | None = None,
    ) -> None:
        self._samples = samples
        self._options = options
        self._seed = options.seed ^ key
        self._shards = shards
        self._start = start or Cursor(samples=samples)
        self._kept: tuple[int, Order] = -1, _in_order

    def cursor(self, turn: int) -> Cursor:
        """Return the place of a turn."""
        start, rest = self._start, self._start.samples - self._start.place
        if turn < rest:
            return Cursor(number=start.number, place=start.place + turn, samples=start.samples)
        passes, place = divmod(turn - rest, self._samples)
        return Cursor(number=start.number + 1 + passes, place=place, samples=self._samples)

    def __call__(self, turns: Int64) -> tuple[Int64, Int64]:
        """Return the pass of each turn, and the index of its sample among those that take part."""
        least, most = (int(turns.min()), int(turns.max())) if len(turns) else (0, 0)
        first = self.cursor(least)
        if first.number == self.cursor(most).number:  # as in most stretches
            places = turns - (least - first.place)
            return np.full_like(turns, first.number), self._order(first.number)(places)
        passes, places = self._places(turns)
        indices = np.empty_like(turns)
        for number, chosen in grouped(passes):
            indices[chosen] = self._order(number)(places[chosen])
        return passes, indices

    def _places(self, turns: Int64) -> tuple[Int64, Int64]:
        start = self._start
        after = turns - (start.samples - start.place)
        later = after >= 0
        passes = start.number + np.where(later, 1 + after // self._samples, 0)
        return passes, np.where(later, after % self._samples, start.place + turns)

    def _order(self, number: int) -> Order:
        """Return the order of a pass; the last one is kept for the next stretch of it."""
        kept, order = self._kept
        if kept == number:
            return order
        samples = self._start.samples if number == self._start.number else self._samples
        key, shuffle = derive(self._seed, number, _ORDER), self._options.shuffle
        if shuffle == "shards" and self._shards is not None and samples == self._samples:
            order = ShardOrder(self._shards, key, shards_mixed=self._options.shards_mixed)
        else:
            order = Permutation(samples, key) if shuffle else _in_order
        self._kept = number, order
        return order


def _in_order(places: Int64) -> Int64:
    return places
