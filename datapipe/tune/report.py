"""A sweep as one HTML file: rates over workers and prefetch, times of batches, drift."""

from __future__ import annotations

import os
import statistics
from itertools import pairwise
from typing import TYPE_CHECKING

from datapipe.htmlpage import COLOURS, Page, new_figure
from datapipe.tune.result import Tried, TuneResult
from datapipe.tune.sweep import TOUCH
from datapipe.tune.table import cells, header, rate_text, verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DARK = 0.6  # of the highest rate, from where on figures are written in white


def write_report(result: TuneResult, path: str | os.PathLike[str], title: str) -> None:
    """Write the report of a sweep.

    Raises:
        PlanError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    page = Page("How many workers", title)
    good = result.sufficient if result.sufficient is not None else result.settled
    page.verdict(f"{verdict(result)}: {rate_text(result)}", "good" if good else "warn")
    page.text(f"{result.reason}.")
    if result.room is not None and result.step_time is not None:
        page.text(
            f"Steps of {1000 * result.step_time:,.1f} ms leave room: the loader is "
            f"{result.room:.2f} times as fast as they need."
        )
    page.figure(
        "Batches a second",
        heat_map(result),
        "Rate of every setting, by workers and prefetch factor; the chosen one is framed",
    )
    page.figure(
        "Time from batch to batch",
        batch_times(result),
        "Median, 90th and 99th percentile of the time from batch to batch, by setting",
    )
    page.figure(
        "Drift",
        drift(result),
        "Rate of every trial over the median of its setting, in the order of the trials",
    )
    rows = [cells(row, result.settings) for row in result.settings]
    page.table("Settings", header(result.settings), rows)
    page.save(path)


def heat_map(result: TuneResult) -> Figure:
    """Rates by workers (across) and prefetch (up), a panel for each kind of loader."""
    kinds = list(dict.fromkeys(row.setting.variant for row in result.settings))
    figure = new_figure(8.0, 2.2 * len(kinds) + 0.8)
    most = max((row.rate or 0.0) for row in result.settings)
    for at, kind in enumerate(kinds):
        axes = figure.add_subplot(len(kinds), 1, at + 1)
        rows = [row for row in result.settings if row.setting.variant == kind]
        _panel(axes, rows, result, most)
        if len(kinds) > 1:
            axes.set_title(", ".join(str(value) for _, value in kind) or "as it is", loc="left")
    return figure


def batch_times(result: TuneResult) -> Figure:
    """Percentiles of the time from batch to batch; a logarithmic scale."""
    rows = [row for row in result.settings if row.p50 is not None]
    figure = new_figure(8.0, 0.9 + 0.28 * len(rows))
    axes = figure.add_subplot()
    for place, row in enumerate(reversed(rows)):
        times = [1000 * max(value or 0.0, 1e-6) for value in (row.p50, row.p90, row.p99)]
        axes.plot(times, [place] * 3, color="#b8c2c9", linewidth=2, zorder=1)
        for time, colour, name in zip(times, COLOURS, ("P50", "P90", "P99"), strict=False):
            axes.scatter(time, place, color=colour, s=36, zorder=2, label=None if place else name)
    axes.set_yticks(range(len(rows)), [str(row.setting) for row in reversed(rows)])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("milliseconds")
    axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    _bare(axes)
    return figure


def drift(result: TuneResult) -> Figure:
    """Each trial's rate over the median of its setting's, in order."""
    figure = new_figure()
    axes = figure.add_subplot()
    trials = [trial for trial in result.trials if not trial.paced and trial.round != TOUCH]
    usual = {
        setting: statistics.median(t.rate for t in trials if t.setting == setting)
        for setting in {trial.setting for trial in trials}
    }
    often = {s for s in usual if sum(t.setting == s for t in trials) > 1}
    shown = [trial for trial in trials if trial.setting in often]
    values = [100 * (trial.rate / usual[trial.setting] - 1) for trial in shown]
    axes.axhline(0, color="#b8c2c9", linewidth=1)
    began = trials[0].began if trials else 0.0
    axes.scatter([trial.began - began for trial in shown], values, color=COLOURS[0], s=18)
    for one, other in pairwise(trials):
        if one.round != other.round:
            axes.axvline(other.began - began, color="#dde2e6", linewidth=1, zorder=0)
    axes.set_xlabel("seconds; lines part the rounds")
    axes.set_ylabel("% from its setting's median")
    _bare(axes)
    return figure


def _panel(axes: Axes, rows: list[Tried], result: TuneResult, most: float) -> None:
    workers = sorted({row.setting.num_workers for row in rows})
    known = {row.setting.prefetch_factor for row in rows}
    ahead = sorted(number for number in known if number is not None) or [0]
    chosen = result.chosen.setting
    for row in rows:
        x = workers.index(row.setting.num_workers)
        share = (row.rate or 0.0) / most if most else 0.0
        colour = _shade(share) if row.rate is not None else "#f1f3f4"
        low, high = 0, len(ahead)  # without workers there is no prefetch
        if row.setting.prefetch_factor in ahead:
            low = ahead.index(row.setting.prefetch_factor)
            high = low + 1
        axes.fill_between([x, x + 1], low, high, color=colour, linewidth=0)
        if row.setting == chosen:
            axes.plot(
                [x, x + 1, x + 1, x, x],
                [low, low, high, high, low],
                color=COLOURS[1],
                linewidth=3,
                zorder=3,
                clip_on=False,
            )
        text = f"{row.rate:,.1f}" if row.rate is not None else "-"
        ink = "white" if share > _DARK else "#1d2429"
        axes.text(x + 0.5, (low + high) / 2, text, ha="center", va="center", color=ink)
    axes.set_xticks([at + 0.5 for at in range(len(workers))], [str(number) for number in workers])
    labels = [str(number) if number else "" for number in ahead]
    axes.set_yticks([at + 0.5 for at in range(len(ahead))], labels)
    axes.set_xlim(0, len(workers))
    axes.set_ylim(0, len(ahead))
    axes.set_xlabel("workers")
    axes.set_ylabel("prefetch")
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)


def _shade(share: float) -> tuple[float, float, float]:
    """From nearly white to the first colour of the reports."""
    full = tuple(int(COLOURS[0][at : at + 2], 16) / 255 for at in (1, 3, 5))
    share = 0.06 + 0.94 * min(1.0, max(0.0, share))
    red, green, blue = (1 + share * (part - 1) for part in full)
    return red, green, blue


def _bare(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
