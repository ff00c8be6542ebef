"""Reasons for a chosen setting, and against larger ones, in words."""

from __future__ import annotations

from collections.abc import Sequence

from datapipe.diagnosis.loader_rules import Limit, find_limit
from datapipe.report.table import counted
from datapipe.tune.choice import fastest, ratio
from datapipe.tune.setting import Setting
from datapipe.tune.sweep import Sweep
from datapipe.tune.trial import Trial


def find_limit_of(chosen: Setting, trials: Sequence[Trial]) -> Limit | None:
    """Find the limit of the loader; None if no trial was watched.

    A limit shows best with more workers than are needed, so the next larger setting is taken if
    there is one.
    """
    watched = {
        trial.setting.num_workers: trial.figures
        for trial in sorted(trials, key=lambda trial: trial.setting.size, reverse=True)
        if trial.figures is not None and trial.setting.variant == chosen.variant
    }
    if not watched:
        return None
    larger = [number for number in watched if number > chosen.num_workers]
    figures = watched[min(larger)] if larger else watched.get(chosen.num_workers)
    return find_limit(figures or watched[min(watched)])


def explain(sweep: Sweep, chosen: Setting, *, settled: bool, limit: Limit | None) -> str:
    """Explain a choice by trials that take batches as fast as they come."""
    rounds, measured, margin = sweep.rounds(), sweep.measured(), sweep.goal.margin
    if len(measured) == 1:
        return f"{chosen} is all that was tried"
    best = fastest(rounds, measured)
    lead = ratio(rounds, best, chosen)
    slight = lead is None or lead.median * (1 - margin) < 1
    text = f"{chosen} is the fastest"
    if lead is not None and best != chosen:
        text = f"{chosen} is the smallest setting that is not measurably slower"
        if slight:
            text = f"{chosen} is as fast as any, to within {margin:.0%}"
        text += f": {best} made {lead.median:.2f} of its rate ({lead.low:.2f} to {lead.high:.2f})"
    if not settled:
        text += ". The time did not suffice to be sure; a larger budget or a quieter machine would"
    most = max(setting.num_workers for setting in measured)
    if chosen.num_workers == best.num_workers == most:
        kind = [setting for setting in sweep.dropped if setting.variant == chosen.variant]
        larger = [setting for setting in kind if setting.num_workers > most]
        if larger:
            first = min(larger, key=lambda setting: setting.size)
            return f"{text}. {first}: {sweep.dropped[first]}"
        return f"{text}. No more than {counted(most, 'worker')} were tried, and more may be faster"
    if limit is None or not slight:
        return text
    workers = counted(chosen.num_workers, "worker")
    return f"{text}. More than {workers} would not help: {limit.reason}"


def explain_pace(
    sweep: Sweep,
    chosen: Setting,
    *,
    share: float | None,
    room: float,
    step: float,
    limit: Limit | None,
) -> str:
    """Explain a choice by trials at the speed of training, in steps of so many seconds."""
    steps, max_wait = f"steps of {1000 * step:,.0f} ms", sweep.goal.max_wait
    if share is not None and share <= max_wait:
        return (
            f"{chosen} is the smallest setting that keeps training waiting at most {max_wait:.1%} "
            f"of its time: {share:.1%} with {steps}, and it is {room:.1f} times as fast as "
            "that needs"
        )
    text = f"no setting keeps waiting under {max_wait:.1%} with {steps}; "
    if share is not None and room > 1:
        return (
            f"{text}with {chosen} it is {share:.1%}, and larger ones hardly shorten it: the loader "
            f"is {room:.1f} times as fast as training, so what is left is handing batches over, or "
            "single slow ones"
        )
    text += f"{chosen} is as fast as any and makes {room:.2f} of what training takes"
    return f"{text}: {limit.reason}" if limit is not None else text
