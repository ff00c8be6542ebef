"""Resuming a run: the run in a state, and the schedule that it continues with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from datapipe.loader.schedule.mixture_draws import MixedOrigin
from datapipe.loader.schedule.mixture_resume import resume_mixture, saved_edges
from datapipe.loader.schedule.run_options import LoaderOptions
from datapipe.loader.schedule.run_schedule import Schedule
from datapipe.loader.schedule.state import Run, parse_state
from datapipe.plan.options import PlanOptions

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
