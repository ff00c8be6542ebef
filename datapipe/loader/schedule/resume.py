"""Resuming a run: the run in a state, and the schedule that it continues with.

If the mixture was changed, the rest of the run is drawn from the new one. What the old mixture had
planned of the current block is still trained, so that no sample is lost or seen twice. If a dataset
of it is not there any more, that cannot be known, and the rest of the block is left out, with a
warning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from datapipe.array_types import Int64
from datapipe.errors import StateMismatch
from datapipe.loader.schedule.mixture.part import MixturePart
from datapipe.loader.schedule.options import LoaderOptions
from datapipe.loader.schedule.origin import Leg, Legs, Origin, PartState
from datapipe.loader.schedule.run_schedule import Schedule
from datapipe.loader.schedule.state import Run, dataset_alone, differences, parse_state
from datapipe.plan.epoch import EpochPlan
from datapipe.plan.mixture import Cursor
from datapipe.plan.options import PlanOptions
from datapipe.plan.steps import Position

logger = logging.getLogger(__name__)


def resume(schedule: Schedule, state: Mapping[str, Any]) -> tuple[Run, Schedule]:
    """Return the run in a state, and the schedule of the rest of it, which has its group.

    `StateMismatch` if the state belongs to another plan or dataset. Mixtures may differ.
    """
    run, fingerprint, saved = parse_state(state)
    group = saved.get("group")
    if isinstance(group, int) and group > 0 and not schedule.group_given:
        schedule = replace(schedule, plan=replace(schedule.plan, group=group))
    _refuse_differences(schedule, fingerprint, saved)
    origin, plan = schedule.origin, schedule.plan
    if saved.get("mixture") == origin.legs.to_dict():
        return run, schedule
    legs = _parse_legs(saved)
    origin, position, changes = _resume_origin(origin, legs, run.position, plan)
    for change in changes:
        step = f"{run.steps:,}"
        logger.warning("the mixture changes from step %s on: %s", step, change)
    start = position if run.start == run.position else run.start
    run = replace(run, position=position, start=start)
    return run, replace(schedule, origin=origin, _counted={})


def _parse_legs(saved: Mapping[str, Any]) -> Legs:
    """Return the legs in a saved plan; `StateMismatch` if they were edited and are none any more.

    The checksum does not tell: it may have been computed again.
    """
    try:
        return Legs.parse(saved["mixture"])
    except (ArithmeticError, AssertionError, AttributeError, TypeError, ValueError) as error:
        cause = str(error)
    except LookupError as error:
        cause = f"{error} is missing"
    raise StateMismatch(
        f"the mixture in the state cannot be read: {cause}; load an earlier state, as "
        "`loader.state_dict()` returned it"
    )


def _refuse_differences(schedule: Schedule, fingerprint: str, saved: Mapping[str, Any]) -> None:
    """Raise StateMismatch for other options, or another dataset where one was given alone."""
    here = schedule.identity()
    is_alone = schedule.origin.is_alone or dataset_alone(saved) is not None
    if not is_alone:
        here["mixture"] = saved.get("mixture")
    different = differences(saved, here)
    if is_alone and fingerprint != schedule.fingerprint:
        there, now = str(fingerprint), schedule.fingerprint
        different.insert(0, f"dataset: {there:.12}… in the state, {now:.12}… here")
    if different:
        raise StateMismatch(
            f"the state belongs to another run ({'; '.join(different)}); open the dataset and give "
            "the options it was saved with"
        )


def warn_of_uneven_steps(plan: PlanOptions, options: LoaderOptions) -> None:
    """Warn on rank 0 if the steps of this launch do not divide the groups of equal cost."""
    group, size, ranks = plan.group, options.units_per_rank, options.world_size
    if options.rank > 0 or ranks == 1 or group == 1 or group % options.share == 0:
        return
    units = "batches" if plan.unit == "batch" else f"{plan.unit}s"
    fitting = [count for count in range(1, group + 1) if group % (count * size) == 0]
    remedy = f"world sizes that do: {', '.join(map(str, fitting))}"
    if not fitting:
        remedy = f"give a batch_size that divides {group}"
    logger.warning(
        "the work of the ranks is less equal: %d %s of equal cost follow each other, and the %d of "
        "a step (%d on each of %d ranks) do not divide them; %s; or begin a run with group=%d, "
        "which has another order",
        *(group, units, options.share, size, ranks, remedy, options.share),
    )


def _resume_origin(
    given: Origin, legs: Legs, position: Position, plan: PlanOptions
) -> tuple[Origin, Position, list[str]]:
    """Return the samples of the rest of a run, its position there, and a line for each change.

    `given` belongs to the mixture of this call, as if a run began with it; `legs` and `position`
    come from the state, and are possible in its plan.
    """
    saved = given.with_legs(legs)
    before, here = legs.legs[-1], given.legs.legs[-1]
    unchanged = [*before.parts] == [*here.parts] and all(
        part.fingerprint == now.fingerprint and part.identity == now.identity
        for part, now in zip(before.parts.values(), here.parts.values(), strict=True)
    )
    if unchanged and legs.digest == given.legs.digest:
        # Amounts in steps were converted when the run began, perhaps with other ranks.
        return saved, position, []
    edges = EpochPlan(saved.source, plan, position.epoch).edges
    start, stop = edges[position.block : position.block + 2].tolist()
    change, problem = _change(legs, given, plan, position, (start, stop))
    if unchanged and legs.begins_run:
        shared = _shared(given, before, plan, position, edges, change)
        if shared is not None:
            later = ["weights change at other times, all of them later than this step"]
            same = before.rates.to_dict() == here.rates.to_dict()
            return given, shared, [] if same else later
    places = saved.places(position.epoch, change)
    known = {**legs.absent, **before.parts}
    states, changes = {}, [] if problem is None else [problem]
    for part in given.parts:
        place = places.get(part.name)
        states[part.name], changed = _continued(known.get(part.name), part, place)
        changes += changed
    absent = {
        name: replace(state, start=places.get(name, state.start))
        for name, state in known.items()
        if name not in states
    }
    changes += [f"{name} is left out" for name in before.parts if name in absent]
    base, _ = legs.span(position.epoch)
    leg = Leg(
        start=base + change, rates=here.rates.after(base + change), epoch=here.epoch, parts=states
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
        digest=given.legs.digest,
        epoch=epoch,
        base=base,
        first=first,
        before=passed,
        legs=steps,
        absent=absent,
    )
    return given.with_legs(resumed), position, changes


def _shared(
    given: Origin, before: Leg, plan: PlanOptions, position: Position, edges: Int64, change: int
) -> Position | None:
    """Return the position in a mixture whose plan is the same until there; None if it is not.

    `edges` are the blocks' of the state's epoch, whose plan is fixed until `change`.
    """
    here = given.legs.legs[-1]
    draw = position.epoch * before.epoch + change
    if before.epoch != here.epoch or not before.rates.same_until(here.rates, draw):
        return None
    now = EpochPlan(given.source, plan, position.epoch).edges
    if plan.unit == "sample" and plan.group == 1:
        block = int(np.searchsorted(now, change, side="right")) - 1
        return Position(position.epoch, block, change - int(now[block]), int(now[block]))
    blocks = slice(position.block + (2 if position.unit else 1))
    return position if np.array_equal(now[blocks], edges[blocks]) else None


def _change(
    legs: Legs, given: Origin, plan: PlanOptions, position: Position, block: tuple[int, int]
) -> tuple[int, str | None]:
    """Return the place in the epoch at which the new mixture begins, and what is lost by that."""
    start, stop = block
    if plan.unit == "sample" and plan.group == 1:
        # Units are in the order of the draws, so it can begin right here.
        return start + position.unit, None
    if not position.unit:
        return start, None
    there = {part.name: part for part in given.parts}
    for name, state in legs.legs[-1].parts.items():
        if name not in there or not _continues(state, there[name]):
            return stop, (
                f"up to {stop - start:,} samples of the current block are left out in this pass: "
                f"it was planned with {name}, which has changed or is gone; to train on them, give "
                "the dataset as it was, with weight 0"
            )
    return stop, None


def _continues(state: PartState, part: MixturePart) -> bool:
    """Return whether the samples that took part are there still: all, or the first of more."""
    now = PartState.of(part)
    if state == replace(now, start=state.start):
        return True
    # The digest of a selection is that of all samples, so it changes as they become more.
    before, here = ({**each.identity, "selection": None} for each in (state, now))
    if before != here or "limit" in before:
        return False
    return part.data.dataset().manifest.extends(state.fingerprint)


def _continued(
    before: PartState | None, part: MixturePart, place: Cursor | None
) -> tuple[PartState, list[str]]:
    now = PartState.of(part)
    if before is None:
        return now, [f"{part.name} is new"]
    changed = [] if place is not None else [f"{part.name} is there again"]
    place = place or before.start
    if before.fingerprint == now.fingerprint and before.identity == now.identity:
        return replace(now, start=place), changed
    if _continues(before, part):
        more = f"{part.name} has grown from {before.samples:,} to {now.samples:,} samples"
        return replace(now, start=place), [*changed, more]
    anew = Cursor(number=place.number + 1, samples=now.samples)
    return replace(now, start=anew), [f"{part.name} has other samples, and starts again"]


def _rates_changed(before: Leg, leg: Leg) -> list[str]:
    """Return the rates that are different from those that the run would have continued with."""
    old = before.rates.after(leg.start - before.start)
    shares = dict(zip(before.parts, old.first[0].tolist(), strict=True))
    found = []
    for name, rate in zip(leg.parts, leg.rates.first[0].tolist(), strict=True):
        if name in shares and abs(shares[name] - rate) > 1e-12:
            found.append(f"{name} has {rate:.2%} of the draws, {shares[name]:.2%} before")
    if not found and old.starts.tolist() != leg.rates.starts.tolist():
        found.append("the schedule changes at other draws")
    return found
