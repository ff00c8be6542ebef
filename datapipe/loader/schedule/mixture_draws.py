"""Draws of a mixture: the samples of any stretch of a run, and their sizes.

A run whose mixture was changed has a leg for each mixture since the epoch in which it was changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from datapipe.array_types import Int64
from datapipe.index.files.mixture_column import split_by_part
from datapipe.loader.schedule.mixture_legs import Entrant, Leg, Legs
from datapipe.loader.schedule.mixture_part import PartSource, key_of
from datapipe.loader.schedule.sample_source import Origin
from datapipe.plan.epoch import Source
from datapipe.plan.mixture import Cursor, DatasetOrder, Interleaving
from datapipe.plan.options import PlanOptions
from datapipe.plan.ragged import edges
from datapipe.plan.random_keys import Identities, RandomKeys
from datapipe.plan.rng import derive
from datapipe.plan.units import PASS_BIT, Sizes, Units

_TIMES, _ORDERS = 1, 2  # purposes of derived keys
_MIXTURE = 7


class Draws:
    """Draws of a mixture over all epochs of a run.

    Args:
        parts: the datasets that are there.
        edges: int64 [datasets + 1], number of the first sample of each.
        legs: of the run.

    Attributes:
        identities: of samples.
    """

    def __init__(
        self, parts: Sequence[PartSource], edges: Int64, legs: Legs, plan: PlanOptions
    ) -> None:
        self.parts = parts
        self.legs = legs
        self.edges = edges
        self.identities = Identities(edges, np.array([part.key for part in parts], np.uint64))
        self._drawn = [_DrawnLeg(leg, parts, edges, plan) for leg in legs.legs]

    def draw(self, epoch: int, start: int, stop: int) -> Int64:
        """Return the samples at some positions of an epoch, with their passes: int64 [n].

        The positions are of one leg.
        """
        before, _ = self.legs.span(epoch)
        return self._drawn[self.legs.at(before + start)].draw(before + start, before + stop)

    def measure(self, samples: Int64) -> Sizes:
        """Return the sizes of samples, which may have their passes: int64 [n]."""
        numbers = samples & ((1 << PASS_BIT) - 1)
        sizes = Sizes(*np.empty((5, len(numbers)), np.int64))
        for number, chosen, own in split_by_part(self.edges, numbers):
            found = self.parts[number].measure(own)
            for column, values in zip(sizes.columns, found.columns, strict=True):
                column[chosen] = values
        return sizes

    def places(self, epoch: int, position: int) -> dict[str, Cursor]:
        """Return the place of each dataset in its own order, before a position of an epoch."""
        draw = self.legs.span(epoch)[0] + position
        last = max(draw - 1, self.legs.legs[0].start)
        return self._drawn[self.legs.at(last)].places(draw)

    def counts(self, epoch: int) -> dict[str, int]:
        """Return how often each dataset is drawn from in an epoch."""
        counts = {part.name: 0 for part in self.parts}
        for leg, start, stop in self._stretches(epoch):
            for name, count in leg.counts(start, stop).items():
                counts[name] = counts.get(name, 0) + count
        return counts

    def asked(self, epoch: int) -> dict[str, float]:
        """Return how often the rates ask for each dataset in an epoch."""
        asked = {part.name: 0.0 for part in self.parts}
        for leg, start, stop in self._stretches(epoch):
            for name, draws in leg.asked(start, stop).items():
                asked[name] = asked.get(name, 0.0) + draws
        return asked

    def _stretches(self, epoch: int) -> Iterator[tuple[_DrawnLeg, int, int]]:
        """Yield each leg in an epoch, and its first draw there and that behind its last."""
        start, stop = self.legs.span(epoch)
        ends = [leg.start for leg in self.legs.legs[1:]] + [stop]
        for leg, drawn, end in zip(self.legs.legs, self._drawn, ends, strict=True):
            first, end = max(start, leg.start), min(end, stop)
            if first < end:
                yield drawn, first, end


class _DrawnLeg:
    """Draws of one leg."""

    def __init__(
        self, leg: Leg, parts: Sequence[PartSource], starts: Int64, plan: PlanOptions
    ) -> None:
        self._leg = leg
        self._plan = plan
        there = {part.name: (number, part) for number, part in enumerate(parts)}
        # A leg is only followed as long as its datasets are there.
        found = [there[name] for name in leg.datasets if name in there]
        self._parts = [part for _, part in found]
        self._firsts: Int64 = starts[[number for number, _ in found]]
        keys = [derive(plan.seed, _MIXTURE, _TIMES, key_of(name)) for name in leg.datasets]
        self._interleaving = Interleaving(leg.rates, keys)
        self._entrants = list(leg.datasets.values())
        self._orders: dict[int, DatasetOrder] = {}

    def draw(self, start: int, stop: int) -> Int64:
        first = self._leg.start
        datasets, turns = self._interleaving.draws(start - first, stop - first)
        samples, passes = np.empty((2, len(turns)), np.int64)
        # Small numbers are sorted four times as fast.
        order = np.argsort(datasets.astype(np.min_scalar_type(len(self._parts))), kind="stable")
        counts = np.bincount(datasets, minlength=len(self._parts))
        bounds = edges(counts).tolist()
        for number in np.flatnonzero(counts).tolist():
            chosen = order[bounds[number] : bounds[number + 1]]
            part = self._parts[number]
            passes[chosen], indices = self._order(number, part)(turns[chosen])
            samples[chosen] = part.select(indices)
        return samples + self._firsts[datasets] + (passes << PASS_BIT)

    def places(self, draw: int) -> dict[str, Cursor]:
        turns = self._interleaving.counts(draw - self._leg.start).tolist()
        return {
            name: DatasetOrder(entrant.samples, 0, start=entrant.start).cursor(turn)
            for (name, entrant), turn in zip(self._leg.datasets.items(), turns, strict=True)
        }

    def counts(self, start: int, stop: int) -> dict[str, int]:
        first = self._leg.start
        drawn = self._interleaving.counts(stop - first) - self._interleaving.counts(start - first)
        return dict(zip(self._leg.datasets, drawn.tolist(), strict=True))

    def asked(self, start: int, stop: int) -> dict[str, float]:
        first = self._leg.start
        asked = self._interleaving.ideal(start - first, stop - first)
        return dict(zip(self._leg.datasets, asked.tolist(), strict=True))

    def _order(self, number: int, part: PartSource) -> DatasetOrder:
        order = self._orders.get(number)
        if order is None:
            plan, entrant = self._plan, self._entrants[number]
            order = self._orders[number] = DatasetOrder(
                entrant.samples,
                derive(plan.seed, _MIXTURE, _ORDERS, part.key),
                shuffle=plan.shuffle,
                shards=part.shards() if plan.shuffle == "shards" else None,
                shards_mixed=plan.shards_mixed,
                start=entrant.start,
            )
        return order


def continues(entrant: Entrant, part: PartSource) -> bool:
    """Return whether the samples that took part are there still: all, or the first of more."""
    now = Entrant.of(part)
    if entrant == replace(now, start=entrant.start):
        return True
    # The digest of a selection is that of all samples, so it changes as they become more.
    before, here = ({**each.identity, "selection": None} for each in (entrant, now))
    return before == here and "limit" not in before and part.has_grown(entrant.fingerprint)


@dataclass(frozen=True, kw_only=True)
class MixedOrigin(Origin):
    """Source of the plan of a mixture, and its parts.

    Attributes:
        draws: of its datasets.
    """

    draws: Draws = field(repr=False)

    @property
    def begins_run(self) -> bool:
        return self.draws.legs.begins_run

    def random_keys(self, units: Units) -> RandomKeys:
        return RandomKeys(units, self.draws.identities)


def mixed_origin(draws: Draws, *, sized: bool, warnings: tuple[str, ...] = ()) -> MixedOrigin:
    """Return the source of a plan of these draws; `sized` says whether tokens were counted."""
    return MixedOrigin(
        source=Source(
            count=draws.legs.legs[-1].epoch,
            measure=draws.measure if sized else None,
            draw=draws.draw,
            bounds=draws.legs.bounds,
        ),
        text=None,
        identity={
            "where": None,
            "selection": None,
            "text": None,
            "mixture": draws.legs.to_dict(),
        },
        warnings=warnings,
        draws=draws,
    )
