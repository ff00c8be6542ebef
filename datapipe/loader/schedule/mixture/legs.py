"""Legs of a run: the mixtures that it is drawn from, one after the other, as a state has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Any

import numpy as np

from datapipe.errors import PlanError
from datapipe.loader.schedule.mixture.part import MixturePart
from datapipe.plan.mixture import Cursor, Rates


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
