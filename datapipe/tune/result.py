"""Results of a sweep, the reasons for a setting in words, and both as text and as an HTML page."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from datapipe.diagnosis.loader_rules import Limit, find_limit
from datapipe.report.charts import COLOURS, PALE, stacked
from datapipe.report.page import Page
from datapipe.report.table import Table, counted, size_text
from datapipe.tune.choice import Ratio, fastest, ratio
from datapipe.tune.paced import WaitShare
from datapipe.tune.setting import Setting
from datapipe.tune.sweep import Sweep
from datapipe.tune.trial import Trial


@dataclass(frozen=True, kw_only=True)
class SettingResult:
    """Results of one setting. A figure that is not known is None."""

    setting: Setting
    rate: float | None = None  # batches a second, in a median trial
    ratio: Ratio | None = None  # of its rate to that of the fastest, in the same rounds
    samples: float | None = None  # a second
    startup: float | None = None  # seconds until the first batch, median
    memory: int | None = None  # most bytes of all processes
    trials: int = 0  # that counted, without those at the speed of training
    waiting: float | None = None  # share of its time that training waited
    out: str = ""  # why it was not tried to the end; empty if it was

    def to_dict(self) -> dict[str, Any]:
        """Convert to values that JSON can hold."""
        own = {name: value for name, value in vars(self).items() if name != "setting"}
        ratio = self.ratio._asdict() if self.ratio is not None else None
        return self.setting.to_dict() | own | {"ratio": ratio}


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """The setting to take, and the figures behind it.

    Examples:
        >>> result = datapipe.tune_workers(make, budget=60)  # doctest: +SKIP
        >>> result.num_workers, result.prefetch_factor  # doctest: +SKIP
        (2, 2)
        >>> print(result)  # doctest: +SKIP
    """

    num_workers: int  # to take
    prefetch_factor: int | None  # to take; None without workers
    variant: Mapping[str, Any]  # further arguments of `make` to take, if several were tried
    rate: float  # batches a second
    samples_rate: float | None  # samples a second; None if batches do not tell their size
    # None without a step time: how many times faster than training the loader is, the share of its
    # time that training waits, and whether that is no longer than `max_wait`
    room: float | None
    waiting: float | None
    sufficient: bool | None
    step_time: float | None  # seconds of a step of training; None if there is none
    reason: str  # for this setting, and why a larger one does not help
    settled: bool  # whether the time sufficed to be sure
    limit: Limit | None  # of the loader with this setting; None if it was not measured
    chosen: SettingResult  # results of this setting
    settings: tuple[SettingResult, ...]  # all that were to be tried, smallest first
    trials: tuple[Trial, ...]  # all that counted batches, in order
    seconds: float  # that it took
    interrupted: bool = False  # whether Ctrl-C ended it early

    def to_dict(self) -> dict[str, Any]:
        """Convert to values that JSON can hold, without the batches of trials."""
        nested = ("variant", "chosen")
        own = {name: value for name, value in vars(self).items() if name not in nested}
        return {
            **self.chosen.setting.to_dict(),
            **own,
            "limit": self.limit.to_dict() if self.limit is not None else None,
            "settings": [tried.to_dict() for tried in self.settings],
            "trials": [trial.to_dict() for trial in self.trials],
        }

    def __str__(self) -> str:
        return self.reason


def summarise(sweep: Sweep, setting: Setting, waiting: WaitShare | None) -> SettingResult:
    every = [trial for trial in sweep.trials if trial.setting == setting]
    found = SettingResult(
        setting=setting,
        startup=statistics.median(trial.startup for trial in every) if every else None,
        memory=max((trial.memory for trial in every), default=0) or None,
        waiting=waiting.share if waiting is not None else None,
        out=sweep.dropped.get(setting, ""),
    )
    unpaced = sweep.unpaced(setting)
    if not unpaced:
        return found
    rate = sweep.rate(setting)
    each = sum(t.samples for t in unpaced) / sum(t.batches for t in unpaced)
    return replace(
        found,
        rate=rate,
        ratio=ratio(sweep.rounds(), setting, sweep.fastest()),
        samples=rate * each if all(trial.samples for trial in unpaced) else None,
        trials=len(unpaced),
    )


def find_limit_of(chosen: Setting, trials: Sequence[Trial]) -> Limit | None:
    """Find the limit of the loader; None if no trial was watched.

    A limit shows best with more workers than are needed, so the next larger setting is taken if
    there is one.
    """
    watched = {
        trial.setting.num_workers: trial.figures
        for trial in sorted(trials, key=lambda trial: trial.setting.size, reverse=True)
        if trial.figures is not None and trial.setting.place == chosen.place
    }
    if not watched:
        return None
    larger = [number for number in watched if number > chosen.num_workers]
    figures = watched[min(larger)] if larger else watched.get(chosen.num_workers)
    return find_limit(figures or watched[min(watched)])


def explain(sweep: Sweep, chosen: Setting, *, settled: bool, limit: Limit | None) -> str:
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
        text += ". The time was too short to be sure; give a larger budget or use a quieter machine"
    most = max(setting.num_workers for setting in measured)
    if chosen.num_workers == best.num_workers == most:
        kind = [setting for setting in sweep.dropped if setting.place == chosen.place]
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


def settings_table(rows: Sequence[SettingResult]) -> Table:
    """List the results of every setting, without columns that would be empty."""
    cells = [_cells(row) for row in rows]
    empty = {
        "kind": len({row.setting.place for row in rows}) <= 1,
        "waiting": all(row.waiting is None for row in rows),
    }
    names = [name for name in cells[0] if not empty.get(name)]
    return names, [[row[name] for name in names] for row in cells]


def chosen_text(result: TuneResult) -> str:
    """Write the arguments of the loader's function."""
    given = result.chosen.setting.arguments
    return ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)


def result_text(result: TuneResult) -> str:
    text = f"{result.rate:,.1f} batches/s"
    if result.samples_rate is not None:
        text += f", {result.samples_rate:,.0f} samples/s"
    return text


def _cells(row: SettingResult) -> dict[str, str]:
    def shown(value: object, form: str) -> str:
        return "-" if value is None else form.format(value)

    return {
        "workers": str(row.setting.num_workers),
        "prefetch": shown(row.setting.prefetch_factor, "{}"),
        "kind": ", ".join(map(str, row.setting.variant.values())) or "-",
        "batches/s": shown(row.rate, "{:,.1f}"),
        "of the fastest": shown(row.ratio, "{0.median:.2f} ({0.low:.2f}-{0.high:.2f})"),
        "samples/s": shown(row.samples, "{:,.0f}"),
        "start s": shown(row.startup, "{:.2f}"),
        "memory": size_text(row.memory),
        "trials": str(row.trials),
        "waiting": shown(row.waiting, "{:.1%}"),
        "": row.out,
    }


def write_report(result: TuneResult, path: str | os.PathLike[str], title: str) -> None:
    page = Page("How many workers", title)
    good = result.sufficient if result.sufficient is not None else result.settled
    page.verdict(f"{chosen_text(result)}: {result_text(result)}", "good" if good else "warn")
    page.text(f"{result.reason}.")
    bars = []
    for row in result.settings:
        if row.rate is not None:
            kind = "chosen" if row is result.chosen else "tried"
            bars.append((str(row.setting), {kind: row.rate}))
    colours = {"chosen": COLOURS[1], "tried": PALE}
    page.figure("Rate of every setting, in a median trial", stacked(bars, colours, "batches/s"))
    page.table("Settings", *settings_table(result.settings))
    page.save(path)
