"""Reasons for a chosen setting, and against larger ones, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

import psutil

from datapipe.diagnosis.loader_figures import LoaderFigures
from datapipe.diagnosis.loader_rules import Limit, find_limit
from datapipe.report.table import counted
from datapipe.tune.effects import Effects
from datapipe.tune.setting import Setting
from datapipe.tune.trial import Trial


def find_limit_of(chosen: Setting, trials: Sequence[Trial]) -> Limit | None:
    """Find the limit of the loader; None if no trial was watched.

    A limit shows best with more workers than are needed, so the next larger setting is taken if
    there is one.
    """
    watched = [
        trial
        for trial in trials
        if trial.usage is not None
        and trial.usage.gil is not None
        and not trial.paced
        and trial.setting.variant == chosen.variant
    ]
    watched.sort(key=lambda trial: trial.setting.size)
    if not watched:
        return None
    larger = [t for t in watched if t.setting.num_workers > chosen.num_workers]
    own = [t for t in watched if t.setting.num_workers == chosen.num_workers]
    shown = (larger or own or watched)[0]
    few = next((t for t in watched if 0 < t.setting.num_workers < shown.setting.num_workers), None)
    samples = all(t.samples for t in (shown, few) if t is not None)
    return find_limit(_figures(shown, samples), _figures(few, samples) if few is not None else None)


def explain(
    chosen: Setting,
    effects: Effects,
    *,
    margin: float,
    settled: bool,
    limit: Limit | None,
) -> str:
    """Explain a choice by trials that take batches as fast as they come."""
    best = max(effects.settings, key=lambda setting: effects.interval(setting)[0])
    most = max(setting.num_workers for setting in effects.settings)
    if len(effects.settings) == 1:
        return f"{chosen} is all that was tried"
    gap, error = effects.gap(best, chosen)
    if best == chosen:
        text = f"{chosen} is the fastest"
    elif gap < -math.log1p(-margin):
        text = f"{chosen} is as fast as any, to within {margin:.0%}: {best} was "
        text += f"{math.expm1(gap):.1%} faster"
    else:
        noise = math.expm1(effects.quantile(0.975) * error)
        text = (
            f"{chosen} is the smallest setting that is not clearly slower: {best} was "
            f"{math.expm1(gap):.0%} faster, give or take {noise:.0%}"
        )
    if not settled:
        text += ". The time did not suffice to be sure; a larger budget or a quieter machine would"
    larger = [s for s in effects.settings if s.num_workers > chosen.num_workers]
    if not larger and best.num_workers == most:
        return f"{text}. No more than {counted(most, 'worker')} were tried, and more may be faster"
    if limit is None or gap >= -math.log1p(-margin):
        return text
    if not chosen.num_workers:
        return f"{text}. Workers do not help: {limit.reason}"
    return (
        f"{text}. More than {counted(chosen.num_workers, 'worker')} would not help: {limit.reason}"
    )


def explain_pace(
    chosen: Setting,
    *,
    sufficient: bool,
    share: float | None,
    room: float,
    max_wait: float,
    step: float,
    limit: Limit | None,
) -> str:
    """Explain a choice by trials at the speed of training."""
    steps = f"steps of {1000 * step:,.0f} ms"
    if sufficient:
        return (
            f"{chosen} is the smallest setting that keeps training waiting at most {max_wait:.1%} "
            f"of its time: {share or 0.0:.1%} with {steps}, and it is {room:.1f} times as fast as "
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


def _figures(trial: Trial, samples: bool) -> LoaderFigures:
    assert trial.usage is not None
    cores = psutil.cpu_count(logical=False)
    return LoaderFigures(
        seconds=trial.usage.seconds,
        usage=trial.usage,
        samples=trial.samples if samples else trial.batches,
        workers=trial.setting.num_workers,
        processes=trial.processes,
        caller_cpu=trial.caller,
        stages=trial.stages,
        siblings=cores is not None and cores < (psutil.cpu_count() or 1),
    )
