"""Samples of a run: the parts of its mixture, and the order in which they are drawn.

One dataset is a mixture of one part, and each epoch is a pass over it. A run whose mixture was
changed has a leg for each mixture since the epoch in which it was changed. A state has them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any

import numpy as np

from datapipe.array_types import Float64, Int64
from datapipe.errors import PlanError
from datapipe.index.mixture import split_by_part
from datapipe.loader.schedule.mixture.part import MixturePart, key_of
from datapipe.plan.epoch import Source
from datapipe.plan.mixture import Cursor, DatasetOrder, Interleaving, Rates
from datapipe.plan.options import PlanOptions
from datapipe.plan.ragged import grouped
from datapipe.plan.rng import derive
from datapipe.plan.units import PASS_BIT, Identities, Sizes, numbers_of

_MIXTURE, _TIMES = 7, 1  # purposes of derived keys


@dataclass(frozen=True, kw_only=True)
class PartState:
    """MixturePart of a mixture in a leg."""

    fingerprint: str  # of the dataset
    identity: dict[str, Any]  # of the selection and sizes of its samples
    samples: int  # that take part
    start: Cursor  # place of the dataset in its own order where the leg begins

    @staticmethod
    def of(part: MixturePart) -> PartState:
        """Return a part that begins."""
        return PartState(
            fingerprint=part.data.fingerprint[:16],
            identity={name: value for name, value in part.identity.items() if value is not None},
            samples=part.samples,
            start=Cursor(samples=part.samples),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON has them."""
        start = [self.start.number, self.start.place, self.start.samples]
        facts = {"fingerprint": self.fingerprint, "samples": self.samples, "start": start}
        return {**facts, **self.identity}

    @staticmethod
    def parse(fields: dict[str, Any]) -> PartState:
        """Return the part of `to_dict`, whose fields are taken out of the dict."""
        number, place, samples = map(_parse_count, fields.pop("start"))
        return PartState(
            fingerprint=fields.pop("fingerprint"),
            samples=_parse_count(fields.pop("samples")),
            start=Cursor(number=number, place=place, samples=samples),
            identity=fields,
        )


@dataclass(frozen=True, kw_only=True)
class Leg:
    """Stretch of a run in which the mixture stays the same."""

    start: int  # draw of the run at which it begins
    rates: Rates  # of the parts from there on
    epoch: int  # draws of an epoch
    parts: Mapping[str, PartState]  # by name, in the order of the rates

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON has them."""
        rates = self.rates
        return {
            "start": self.start,
            "epoch": self.epoch,
            "segments": rates.starts.tolist(),
            "datasets": {
                name: {
                    "rates": [rates.first[:, number].tolist(), rates.last[:, number].tolist()],
                    **part.to_dict(),
                }
                for number, (name, part) in enumerate(self.parts.items())
            },
        }

    @staticmethod
    def parse(fields: Mapping[str, Any]) -> Leg:
        """Return the leg of `to_dict`."""
        given = {name: dict(part) for name, part in fields["datasets"].items()}
        rates = [part.pop("rates") for part in given.values()]
        return Leg(
            start=_parse_count(fields["start"]),
            epoch=_parse_count(fields["epoch"]),
            rates=Rates(
                starts=np.array(fields["segments"], np.int64),
                first=np.array([first for first, _ in rates], np.float64).T,
                last=np.array([last for _, last in rates], np.float64).T,
            ),
            parts={name: PartState.parse(part) for name, part in given.items()},
        )


@dataclass(frozen=True, kw_only=True)
class Legs:
    """Legs of a run from some draw on."""

    digest: str  # of the mixture as it was given, for the last leg
    # `epoch`, `base`: number of the first epoch, and the draw at which it begins here
    epoch: int
    base: int
    first: int  # draws of this epoch from there on
    before: int = 0  # draws of this epoch before
    legs: tuple[Leg, ...]  # in order; the first epoch has all, later ones only the last
    # Parts that were left out, by name, with their places
    absent: Mapping[str, PartState] = field(default_factory=dict)

    @property
    def begins_run(self) -> bool:
        """True if the mixture was never changed."""
        return (self.epoch, self.base, len(self.legs)) == (0, 0, 1)

    def span(self, epoch: int) -> tuple[int, int]:
        """Return the first draw of an epoch and of the next; PlanError for another mixture's."""
        if epoch < self.epoch:
            raise PlanError(
                f"epoch {epoch} was drawn from another mixture, which was changed in epoch "
                f"{self.epoch}; look at it with the mixture and a state of that time"
            )
        end = self.base + self.first
        if epoch == self.epoch:
            return self.base, end
        length = self.legs[-1].epoch
        start = end + (epoch - self.epoch - 1) * length
        return start, start + length

    def epoch_of(self, draw: int) -> int | None:
        """Return the epoch of a draw; None if it was planned with another mixture."""
        if draw < self.base:
            return None
        _, end = self.span(self.epoch)
        if draw < end:
            return self.epoch
        return self.epoch + 1 + (draw - end) // self.legs[-1].epoch

    def at(self, draw: int) -> int:
        """Return the index of the leg of a draw."""
        return max(number for number, leg in enumerate(self.legs) if leg.start <= draw)

    def bounds(self, epoch: int) -> list[int]:
        """Return positions in an epoch at which a leg begins, or rates begin or cease to change."""
        start, stop = self.span(epoch)
        ends = [leg.start for leg in self.legs[1:]] + [stop]
        cuts = {start, stop, *ends}
        for leg, end in zip(self.legs, ends, strict=True):
            cuts |= {cut for at in leg.rates.starts.tolist() if (cut := leg.start + at) < end}
        return sorted(cut - start for cut in cuts if start <= cut <= stop)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON has them."""
        absent = {name: part.to_dict() for name, part in self.absent.items()}
        return vars(self) | {"legs": [leg.to_dict() for leg in self.legs], "absent": absent}

    @staticmethod
    def parse(fields: Mapping[str, Any]) -> Legs:
        """Return the legs of `to_dict`."""
        legs = tuple(Leg.parse(leg) for leg in fields["legs"])
        absent = {name: PartState.parse(dict(one)) for name, one in fields["absent"].items()}
        if not legs:
            raise ValueError("it has no legs")
        counts = {name: _parse_count(fields[name]) for name in ("epoch", "base", "first", "before")}
        return Legs(**{**fields, **counts, "legs": legs, "absent": absent})


def _parse_count(value: object) -> int:
    number = index(value)  # type: ignore[arg-type]  # TypeError if it is no integer
    if not 0 <= number < 2**48:
        raise ValueError(f"{number} is no possible count")
    return number


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
        sizes = Sizes(*np.empty((5, len(samples)), np.int64))
        for number, chosen, own in split_by_part(self.edges, numbers_of(samples)):
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
        return self._total(
            epoch, lambda order, start, stop: order.counts(stop) - order.counts(start)
        )

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
        samples = np.empty_like(turns)
        # Small numbers are sorted four times as fast.
        for number, chosen in grouped(numbers.astype(np.min_scalar_type(len(self._parts)))):
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
