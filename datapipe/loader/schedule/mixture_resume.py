"""Resuming a run with another mixture: the rest of it is drawn from the new one.

What the old mixture had planned of the current block is still trained, so that no sample is lost or
seen twice; a dataset that is not there any more is left out of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from datapipe.array_types import Int64
from datapipe.errors import PlanError, StateMismatch
from datapipe.loader.schedule.mixture_draws import (
    Draws,
    Entrant,
    Leg,
    Legs,
    MixedOrigin,
    continues,
    mixed_origin,
)
from datapipe.plan.epoch import EpochPlan
from datapipe.plan.mixture import Cursor
from datapipe.plan.options import PlanOptions
from datapipe.plan.steps import Position

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ResumedMixture:
    """Mixture of a run that goes on.

    Attributes:
        origin: of the rest of the run.
        changes: what is different from here on, a line each; none if nothing is.
        position: from which the run goes on; the same unit, by its place in the new plan.
    """

    origin: MixedOrigin
    changes: tuple[str, ...]
    position: Position


def resume_mixture(
    origin: MixedOrigin, saved: Mapping[str, Any], position: Position, plan: PlanOptions
) -> ResumedMixture:
    """Return the mixture of a run that was saved, and what has changed.

    Args:
        origin: of the mixture that was given now, as if a run began with it.
        saved: `mixture` of the plan in the state.
        position: in the state.

    Raises:
        StateMismatch: the state has no mixture, or its position is not in the plan.
    """
    try:
        legs = Legs.parse(saved)
        edges = _plan_of(origin, legs, plan, position.epoch).edges
        start, stop = edges[position.block : position.block + 2].tolist()
    except (KeyError, TypeError, ValueError, AttributeError, PlanError) as error:
        raise StateMismatch(
            "the mixture or the position in this state cannot be read; give what "
            "`loader.state_dict()` returned"
        ) from error
    given, sized = origin.draws, origin.source.measure is not None
    before, here = legs.legs[-1], given.legs.legs[-1]
    unchanged = [*before.datasets] == [*here.datasets] and all(
        entrant.fingerprint == now.fingerprint and entrant.identity == now.identity
        for entrant, now in zip(before.datasets.values(), here.datasets.values(), strict=True)
    )
    if unchanged and legs.said == given.legs.said:
        # Amounts in steps were converted when the run began, perhaps with other ranks.
        draws = Draws(given.parts, given.edges, legs, plan)
        return ResumedMixture(
            origin=mixed_origin(draws, sized=sized), changes=(), position=position
        )
    base, _ = legs.span(position.epoch)
    if plan.unit == "sample" and plan.group == 1 and position.unit:
        # Units are in the order of the draws, so the new mixture can begin right here.
        change = start + position.unit
        position = Position(position.epoch, position.block + 1, 0, position.consumed)
    else:
        change = stop if position.unit else start
    past = Draws(given.parts, given.edges, legs, plan)
    places = past.places(position.epoch, change)
    entrants, changes = {}, []
    for part in given.parts:
        entrant, said = _entrant(before.datasets.get(part.name), part, places.get(part.name))
        entrants[part.name] = entrant
        changes += said
    changes += [f"{name} is left out" for name in before.datasets if name not in entrants]
    leg = Leg(
        start=base + change,
        rates=here.rates.after(base + change),
        epoch=here.epoch,
        datasets=entrants,
    )
    changes += _rates_changed(before, leg)
    kept = legs.legs if legs.epoch == position.epoch else legs.legs[-1:]
    kept = tuple(each for each in kept if each.start < leg.start) if change else ()
    resumed = Legs(said=given.legs.said, epoch=position.epoch, base=base, legs=(*kept, leg))
    draws = Draws(given.parts, given.edges, resumed, plan)
    return ResumedMixture(
        origin=mixed_origin(draws, sized=sized), changes=tuple(changes), position=position
    )


def saved_edges(
    origin: MixedOrigin, saved: Mapping[str, Any], plan: PlanOptions, epoch: int
) -> Int64 | None:
    """Return the positions of the blocks of an epoch in a saved mixture; None if not known."""
    legs = Legs.parse(saved)
    return None if epoch < legs.epoch else _plan_of(origin, legs, plan, epoch).edges


def _plan_of(origin: MixedOrigin, legs: Legs, plan: PlanOptions, epoch: int) -> EpochPlan:
    given = origin.draws
    draws = Draws(given.parts, given.edges, legs, plan)
    made = mixed_origin(draws, sized=origin.source.measure is not None)
    return EpochPlan(made.source, plan, epoch)


def _entrant(before: Entrant | None, part: Any, place: Cursor | None) -> tuple[Entrant, list[str]]:
    """Return a dataset of the new leg, and what has changed about it."""
    now = Entrant.of(part)
    if before is None or place is None:
        return now, [f"{part.name} is new"]
    if before.fingerprint == now.fingerprint and before.identity == now.identity:
        return _at(now, place), []
    if continues(before, part):
        more = f"{part.name} has grown from {before.samples:,} to {now.samples:,} samples"
        return _at(now, place), [more]
    anew = Cursor(number=place.number + 1, samples=now.samples)
    return _at(now, anew), [f"{part.name} has other samples, and begins anew"]


def _at(entrant: Entrant, place: Cursor) -> Entrant:
    return Entrant(
        fingerprint=entrant.fingerprint,
        identity=entrant.identity,
        samples=entrant.samples,
        start=place,
    )


def _rates_changed(before: Leg, leg: Leg) -> list[str]:
    """Return the rates that are different from those that the run would have gone on with."""
    old = before.rates.after(leg.start - before.start)
    shares = dict(zip(before.datasets, old.first[0].tolist(), strict=True))
    found = []
    for name, rate in zip(leg.datasets, leg.rates.first[0].tolist(), strict=True):
        if name in shares and abs(shares[name] - rate) > 1e-12:
            found.append(f"{name} has {rate:.2%} of the draws, {shares[name]:.2%} before")
    if not found and old.starts.tolist() != leg.rates.starts.tolist():
        found.append("the schedule changes at other draws")
    return found
