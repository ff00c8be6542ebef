"""Resuming a run with another mixture: the rest of it is drawn from the new one.

What the old mixture had planned of the current block is still trained, so that no sample is lost or
seen twice. If a dataset of it is not there any more, that cannot be known, and the rest of the
block is left out, with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from datapipe.array_types import Int64
from datapipe.errors import PlanError, StateMismatch
from datapipe.loader.schedule.mixture_draws import Draws, MixedOrigin, continues, mixed_origin
from datapipe.loader.schedule.mixture_legs import Entrant, Leg, Legs
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
    change, problem = _change(legs, given, plan, position, (start, stop))
    if unchanged and legs.begins_run:
        shared = _shared(origin, before, plan, position, edges, change)
        if shared is not None:
            later = ("weights change at other times, all of them later than this step",)
            same = before.rates.to_dict() == here.rates.to_dict()
            return ResumedMixture(origin=origin, changes=() if same else later, position=shared)
    places = Draws(given.parts, given.edges, legs, plan).places(position.epoch, change)
    known = {**legs.absent, **before.datasets}
    entrants, changes = {}, [] if problem is None else [problem]
    for part in given.parts:
        place = places.get(part.name)
        entrants[part.name], said = _entrant(known.get(part.name), part, place)
        changes += said
    absent = {
        name: replace(entrant, start=places.get(name, entrant.start))
        for name, entrant in known.items()
        if name not in entrants
    }
    changes += [f"{name} is left out" for name in before.datasets if name in absent]
    base, _ = legs.span(position.epoch)
    leg = Leg(
        start=base + change,
        rates=here.rates.after(base + change),
        epoch=here.epoch,
        datasets=entrants,
    )
    changes += _rates_changed(before, leg)
    epoch, passed = position.epoch, legs.before if legs.epoch == position.epoch else 0
    if change == stop and position.unit and problem is None:  # the block is finished first
        kept = legs.legs if legs.epoch == epoch else legs.legs[-1:]
        steps = (*(one for one in kept if one.start < leg.start), leg)
        first = max(here.epoch - passed, change)
    else:
        # The rest of the epoch has blocks of its own.
        base, steps, passed = leg.start, (leg,), passed + change
        if passed >= here.epoch:
            epoch, passed = epoch + 1, 0
        first, position = here.epoch - passed, Position(epoch)
    resumed = Legs(
        said=given.legs.said,
        epoch=epoch,
        base=base,
        first=first,
        before=passed,
        legs=steps,
        absent=absent,
    )
    draws = Draws(given.parts, given.edges, resumed, plan)
    return ResumedMixture(
        origin=mixed_origin(draws, sized=sized), changes=tuple(changes), position=position
    )


def _shared(
    origin: MixedOrigin,
    before: Leg,
    plan: PlanOptions,
    position: Position,
    edges: Int64,
    change: int,
) -> Position | None:
    """Return the position in a mixture whose plan is the same until there; None if it is not.

    Args:
        edges: of the blocks of the epoch in the state.
        change: place in the epoch until which the state's plan is fixed.
    """
    legs = origin.draws.legs
    here = legs.legs[-1]
    draw = position.epoch * before.epoch + change
    if before.epoch != here.epoch or not before.rates.same_until(here.rates, draw):
        return None
    now = _plan_of(origin, legs, plan, position.epoch).edges
    if plan.unit == "sample" and plan.group == 1:
        block = int(np.searchsorted(now, change, side="right")) - 1
        return Position(position.epoch, block, change - int(now[block]), int(now[block]))
    blocks = slice(position.block + (2 if position.unit else 1))
    return position if np.array_equal(now[blocks], edges[blocks]) else None


def _change(
    legs: Legs, given: Draws, plan: PlanOptions, position: Position, block: tuple[int, int]
) -> tuple[int, str | None]:
    """Return the place in the epoch at which the new mixture begins, and what is lost by that."""
    start, stop = block
    if plan.unit == "sample" and plan.group == 1:
        # Units are in the order of the draws, so it can begin right here.
        return start + position.unit, None
    if not position.unit:
        return start, None
    there = {part.name: part for part in given.parts}
    for name, entrant in legs.legs[-1].datasets.items():
        if name not in there or not continues(entrant, there[name]):
            return stop, (
                f"up to {stop - start:,} samples of the current block are left out in this pass: "
                f"it was planned with {name}, which is not there as it was; to train them, give "
                "the dataset as it was, with weight 0"
            )
    return stop, None


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
    if before is None:
        return now, [f"{part.name} is new"]
    said = [] if place is not None else [f"{part.name} is there again"]
    place = place or before.start
    if before.fingerprint == now.fingerprint and before.identity == now.identity:
        return replace(now, start=place), said
    if continues(before, part):
        more = f"{part.name} has grown from {before.samples:,} to {now.samples:,} samples"
        return replace(now, start=place), [*said, more]
    anew = Cursor(number=place.number + 1, samples=now.samples)
    return replace(now, start=anew), [f"{part.name} has other samples, and begins anew"]


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
