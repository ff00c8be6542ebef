"""Resuming a run: the run in a state, and the schedule that it continues with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from datapipe.loader.schedule.mixture_draws import MixedOrigin
from datapipe.loader.schedule.mixture_resume import resume_mixture, saved_edges
from datapipe.loader.schedule.run_schedule import Schedule
from datapipe.loader.schedule.state import Run, parse_state

logger = logging.getLogger(__name__)


def resume(schedule: Schedule, state: Mapping[str, Any]) -> tuple[Run, Schedule]:
    """Return the run in a state, and the schedule of the rest of it.

    Raises:
        StateMismatch: the state belongs to another dataset or plan. Mixtures may differ.
    """
    origin, plan = schedule.origin, schedule.plan
    saved = _saved_mixture(state) if isinstance(origin, MixedOrigin) else None
    if saved is None or not isinstance(origin, MixedOrigin):
        run = parse_state(
            state,
            schedule.fingerprint,
            schedule.identity(),
            lambda epoch: schedule.blocks(epoch).plan.edges,
        )
        return run, schedule
    run = parse_state(
        state,
        state["fingerprint"],  # of the mixture at that time
        schedule.identity() | {"mixture": saved},
        lambda epoch: saved_edges(origin, saved, plan, epoch),
    )
    resumed = resume_mixture(origin, saved, run.position, plan)
    for change in resumed.changes:
        step = f"{run.steps:,}"
        logger.warning("the mixture is another one from step %s on: %s", step, change)
    start = resumed.position if run.start == run.position else run.start
    run = replace(run, position=resumed.position, start=start)
    return run, replace(schedule, origin=resumed.origin, _counted={})


def _saved_mixture(state: Mapping[str, Any]) -> Mapping[str, Any] | None:
    plan = state.get("plan") if isinstance(state, Mapping) else None
    saved = plan.get("mixture") if isinstance(plan, Mapping) else None
    return saved if isinstance(saved, Mapping) and "fingerprint" in state else None


def warn_of_uneven_steps(group: int, unit: str, units_per_rank: int, world_size: int) -> None:
    """Warn that steps of this launch do not divide those that the run was planned for."""
    units = f"{unit}e" if unit == "batch" else unit
    fitting = [size for size in range(1, group + 1) if group % (size * units_per_rank) == 0]
    remedy = f"world sizes that divide them: {', '.join(map(str, fitting))}"
    if not fitting:
        remedy = f"give a batch_size that divides {group}"
    logger.warning(
        "the work of the ranks will be less equal: the run was planned for steps of %d %ss over "
        "all ranks, and %d on each of %d ranks do not divide them; order and resume stay as they "
        "were; %s",
        *(group, units, units_per_rank, world_size, remedy),
    )
