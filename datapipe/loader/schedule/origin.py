"""Samples of a run: the parts of its mixture, and the order in which they are drawn.

One dataset is a mixture of one part, and each epoch is a pass over it. A run whose mixture was
changed has a leg for each mixture since the epoch in which it was changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from datapipe.array_types import Float64, Int64
from datapipe.index.mixture import split_by_part
from datapipe.loader.schedule.mixture.legs import Leg, Legs
from datapipe.loader.schedule.mixture.part import MixturePart, key_of
from datapipe.plan.epoch import Source
from datapipe.plan.mixture import Cursor, DatasetOrder, Interleaving
from datapipe.plan.options import PlanOptions
from datapipe.plan.ragged import edges
from datapipe.plan.rng import derive
from datapipe.plan.units import PASS_BIT, Identities, Sizes

_MIXTURE, _TIMES = 7, 1  # purposes of derived keys


class Origin:
    """Samples of a run over all epochs; `edges` int64 [parts + 1], first sample of each part."""

    def __init__(
        self, parts: Sequence[MixturePart], edges: Int64, legs: Legs, plan: PlanOptions
    ) -> None:
        self.parts = parts
        self.legs = legs
        self.edges = edges
        self.identities = Identities(edges, np.array([part.key for part in parts], np.uint64))
        self._plan = plan
        self._drawn = [_DrawnLeg(leg, parts, edges, plan) for leg in legs.legs]
        sized = any(part.rule is not None for part in parts)
        self.source = Source(
            count=legs.legs[-1].epoch,
            draw=self._draw,
            bounds=legs.bounds,
            measure=self._measure if sized else None,
        )

    def with_legs(self, legs: Legs) -> Origin:
        """Return the samples of these parts in a run of other legs."""
        return Origin(self.parts, self.edges, legs, self._plan)

    @property
    def is_alone(self) -> bool:
        """True if the data are one dataset that was given alone, which has no name."""
        return not self.parts[0].data.is_named

    def _draw(self, epoch: int, start: int, stop: int) -> Int64:
        """Return the samples, with passes, at positions of an epoch in one leg: int64 [n]."""
        before, _ = self.legs.span(epoch)
        return self._drawn[self.legs.at(before + start)].draw(before + start, before + stop)

    def _measure(self, samples: Int64) -> Sizes:
        """Return the sizes of samples, which may have their passes: int64 [n]."""
        numbers = samples & ((1 << PASS_BIT) - 1)
        sizes = Sizes(*np.empty((5, len(numbers)), np.int64))
        for number, chosen, own in split_by_part(self.edges, numbers):
            found = self.parts[number].text().measure(own)
            for column, values in zip(sizes.columns, found.columns, strict=True):
                column[chosen] = values
        return sizes

    def places(self, epoch: int, position: int) -> dict[str, Cursor]:
        """Return the place of each part in its own order, before a position of an epoch."""
        draw = self.legs.span(epoch)[0] + position
        last = max(draw - 1, self.legs.legs[0].start)
        return self._drawn[self.legs.at(last)].places(draw)

    def counts(self, epoch: int) -> dict[str, int]:
        """Return how often each part is drawn from in an epoch."""

        def drawn(order: Interleaving, start: int, stop: int) -> Int64:
            return order.counts(stop) - order.counts(start)

        return self._total(epoch, drawn)

    def asked(self, epoch: int) -> dict[str, float]:
        """Return how often the rates ask for each part in an epoch."""
        return self._total(epoch, Interleaving.ideal)

    def _total(
        self, epoch: int, measure: Callable[[Interleaving, int, int], Int64 | Float64]
    ) -> dict[str, Any]:
        """Add up what `measure` returns of each part in the draws of an epoch, leg by leg."""
        start, stop = self.legs.span(epoch)
        ends = [leg.start for leg in self.legs.legs[1:]] + [stop]
        total: Counter[str] = Counter({part.name: 0 for part in self.parts})
        for leg, drawn, end in zip(self.legs.legs, self._drawn, ends, strict=True):
            first, end = max(start, leg.start) - leg.start, min(end, stop) - leg.start
            if first < end:
                measured = measure(drawn.interleaving, first, end).tolist()
                total.update(dict(zip(leg.parts, measured, strict=True)))
        return dict(total)


class _DrawnLeg:
    def __init__(
        self, leg: Leg, parts: Sequence[MixturePart], starts: Int64, plan: PlanOptions
    ) -> None:
        self._leg = leg
        self._plan = plan
        there = {part.name: (number, part) for number, part in enumerate(parts)}
        # A leg is only followed as long as its parts are there.
        found = [there[name] for name in leg.parts if name in there]
        self._parts = [part for _, part in found]
        self._firsts: Int64 = starts[[number for number, _ in found]]
        keys = [derive(plan.seed, _MIXTURE, _TIMES, key_of(name)) for name in leg.parts]
        self.interleaving = Interleaving(leg.rates, keys)
        self._states = list(leg.parts.values())
        self._orders: dict[int, DatasetOrder] = {}

    def draw(self, start: int, stop: int) -> Int64:
        first = self._leg.start
        numbers, turns = self.interleaving.draws(start - first, stop - first)
        if len(self._parts) == 1:
            return self._take(0, turns)
        # Small numbers are sorted four times as fast.
        order = np.argsort(numbers.astype(np.min_scalar_type(len(self._parts))), kind="stable")
        counts = np.bincount(numbers, minlength=len(self._parts))
        bounds = edges(counts).tolist()
        samples = np.empty_like(turns)
        for number in np.flatnonzero(counts).tolist():
            chosen = order[bounds[number] : bounds[number + 1]]
            samples[chosen] = self._take(number, turns[chosen])
        return samples

    def places(self, draw: int) -> dict[str, Cursor]:
        turns = self.interleaving.counts(draw - self._leg.start).tolist()
        return {
            name: DatasetOrder(state.samples, self._plan, start=state.start).cursor(turn)
            for (name, state), turn in zip(self._leg.parts.items(), turns, strict=True)
        }

    def _take(self, number: int, turns: Int64) -> Int64:
        """Return the samples of a part at its turns, with their passes: int64 [n]."""
        part, state, order = self._parts[number], self._states[number], self._orders.get(number)
        if order is None:
            order = self._orders[number] = DatasetOrder(
                state.samples,
                self._plan,
                key=part.key,
                shards=part.shards() if self._plan.shuffle == "shards" else None,
                start=state.start,
            )
        passes, indices = order(turns)
        samples: Int64 = part.select(indices) + self._firsts[number] + (passes << PASS_BIT)
        return samples
