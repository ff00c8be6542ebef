"""Resuming a run: the run in a state, and the schedule that it continues with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from datapipe.errors import StateMismatch
from datapipe.loader.schedule.mixture.changes import resume_origin
from datapipe.loader.schedule.mixture.legs import Legs
from datapipe.loader.schedule.run_options import LoaderOptions
from datapipe.loader.schedule.run_schedule import Schedule
from datapipe.loader.schedule.state import Run, SavedRun, differences, parse_state
from datapipe.plan.options import PlanOptions

logger = logging.getLogger(__name__)


def resume(schedule: Schedule, state: Mapping[str, Any]) -> tuple[Run, Schedule]:
    """Return the run in a state, and the schedule of the rest of it, which has its group.

    `StateMismatch` if the state belongs to another plan or dataset. Mixtures may differ.
    """
    saved = parse_state(state)
    if saved.group is not None and not schedule.group_given:
        schedule = replace(schedule, plan=replace(schedule.plan, group=saved.group))
    _refuse_differences(schedule, saved)
    run, origin, plan = saved.run, schedule.origin, schedule.plan
    if saved.plan["mixture"] == origin.legs.to_dict():
        return run, schedule
    legs = Legs.parse(saved.plan["mixture"])
    origin, position, changes = resume_origin(origin, legs, run.position, plan)
    for change in changes:
        step = f"{run.steps:,}"
        logger.warning("the mixture changes from step %s on: %s", step, change)
    start = position if run.start == run.position else run.start
    run = replace(run, position=position, start=start)
    return run, replace(schedule, origin=origin, _counted={})


def _refuse_differences(schedule: Schedule, saved: SavedRun) -> None:
    """Raise StateMismatch for other options, or another dataset where one was given alone."""
    here = schedule.identity()
    is_alone = schedule.origin.is_alone or saved.is_alone
    if not is_alone:
        here["mixture"] = saved.plan.get("mixture")
    different = differences(saved.plan, here)
    if is_alone and saved.fingerprint != schedule.fingerprint:
        there, now = str(saved.fingerprint), schedule.fingerprint
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
