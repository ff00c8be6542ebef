"""Result of a sweep as text, and as one HTML page with figures."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from datapipe.report.charts import COLOURS, INK, PALE, bare, new_figure, percentiles, plot
from datapipe.report.page import Page
from datapipe.report.table import Table, size_text
from datapipe.tune.result import Tried, TuneResult
from datapipe.tune.sweep import TOUCH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DARK = 0.6  # of the highest rate, from which on numbers are white


def settings_table(rows: Sequence[Tried]) -> Table:
    """List the results of every setting, without columns of which nothing is known."""
    cells = [_cells(row) for row in rows]
    empty = {
        "kind": len({row.setting.variant for row in rows}) <= 1,
        "waiting": all(row.waiting is None for row in rows),
    }
    names = [name for name in cells[0] if not empty.get(name)]
    return names, [[row[name] for name in names] for row in cells]


def chosen_text(result: TuneResult) -> str:
    """Write the arguments of the loader's function."""
    words = [f"num_workers={result.num_workers}"]
    if result.prefetch_factor is not None:
        words.append(f"prefetch_factor={result.prefetch_factor}")
    return ", ".join([*words, *(f"{name}={value!r}" for name, value in result.variant.items())])


def result_text(result: TuneResult) -> str:
    """Say how fast the chosen setting is."""
    chosen = result.chosen
    text = f"{result.rate:,.1f} batches/s"
    if chosen.low is not None and chosen.high is not None:
        text += f" ({chosen.low:,.1f} to {chosen.high:,.1f})"
    if result.samples_rate is not None:
        text += f", {result.samples_rate:,.0f} samples/s"
    return text


def _cells(row: Tried) -> dict[str, str]:
    """List the cells of a row by their header."""
    times = {"P50 ms": row.p50, "P90 ms": row.p90, "P99 ms": row.p99}
    return {
        "workers": str(row.setting.num_workers),
        "prefetch": _or_dash(row.setting.prefetch_factor, "{}"),
        "kind": ", ".join(str(value) for _, value in row.setting.variant) or "-",
        "batches/s": _or_dash(row.rate, "{:,.1f}"),
        "95 %": "-" if row.low is None or row.high is None else f"{row.low:,.1f}-{row.high:,.1f}",
        "samples/s": _or_dash(row.samples, "{:,.0f}"),
        **{name: "-" if t is None else f"{1000 * t:,.1f}" for name, t in times.items()},
        "start s": _or_dash(row.startup, "{:.2f}"),
        "memory": size_text(row.memory),
        "trials": str(row.trials),
        "waiting": _or_dash(row.waiting, "{:.1%}"),
        "": row.out,
    }


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def write_report(result: TuneResult, path: str | os.PathLike[str], title: str) -> None:
    """Write the report of a sweep."""
    page = Page("How many workers", title)
    good = result.sufficient if result.sufficient is not None else result.settled
    page.verdict(f"{chosen_text(result)}: {result_text(result)}", "good" if good else "warn")
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
    page.table("Settings", *settings_table(result.settings))
    page.save(path)


def heat_map(result: TuneResult) -> Figure:
    """Draw rates by workers (across) and prefetch (up), a panel for each kind of loader."""
    kinds = list(dict.fromkeys(row.setting.variant for row in result.settings))
    figure = new_figure(2.2 * len(kinds) + 0.8)
    most = max((row.rate or 0.0) for row in result.settings)
    for at, kind in enumerate(kinds):
        axes = figure.add_subplot(len(kinds), 1, at + 1)
        _panel(axes, [row for row in result.settings if row.setting.variant == kind], result, most)
        if len(kinds) > 1:
            axes.set_title(", ".join(str(value) for _, value in kind) or "as it is", loc="left")
    return figure


def batch_times(result: TuneResult) -> Figure:
    """Draw percentiles of the time from batch to batch."""
    return percentiles(
        [
            (str(row.setting), (row.p50, row.p90 or 0.0, row.p99 or 0.0))
            for row in result.settings
            if row.p50 is not None
        ]
    )


def drift(result: TuneResult) -> Figure:
    """Draw each trial's rate over the median of its setting's, in order."""
    figure, axes = plot()
    trials = [trial for trial in result.trials if not trial.paced and trial.round != TOUCH]
    rates = {
        setting: [t.rate for t in trials if t.setting == setting]
        for setting in {trial.setting for trial in trials}
    }
    repeated = [trial for trial in trials if len(rates[trial.setting]) > 1]
    values = [100 * (t.rate / statistics.median(rates[t.setting]) - 1) for t in repeated]
    axes.axhline(0, color=PALE, linewidth=1)
    began = trials[0].began if trials else 0.0
    axes.scatter([trial.began - began for trial in repeated], values, color=COLOURS[0], s=18)
    for before, after in pairwise(trials):
        if before.round != after.round:
            axes.axvline(after.began - began, color="#dde2e6", linewidth=1, zorder=0)
    axes.set(xlabel="seconds; lines part the rounds", ylabel="% from its setting's median")
    return figure


def _panel(axes: Axes, rows: list[Tried], result: TuneResult, most: float) -> None:
    workers = sorted({row.setting.num_workers for row in rows})
    factors = {row.setting.prefetch_factor for row in rows}
    ahead = sorted(number for number in factors if number is not None) or [0]
    for row in rows:
        x = workers.index(row.setting.num_workers)
        share = (row.rate or 0.0) / most if most else 0.0
        colour = _shade(share) if row.rate is not None else "#f1f3f4"
        low, high = 0, len(ahead)  # without workers there is no prefetch
        if row.setting.prefetch_factor in ahead:
            low = ahead.index(row.setting.prefetch_factor)
            high = low + 1
        axes.fill_between([x, x + 1], low, high, color=colour, linewidth=0)
        if row is result.chosen:
            frame = [x, x + 1, x + 1, x, x], [low, low, high, high, low]
            axes.plot(*frame, color=COLOURS[1], linewidth=3, zorder=3, clip_on=False)
        text = f"{row.rate:,.1f}" if row.rate is not None else "-"
        ink = "white" if share > _DARK else INK
        axes.text(x + 0.5, (low + high) / 2, text, ha="center", va="center", color=ink)
    axes.set_xticks([at + 0.5 for at in range(len(workers))], [str(number) for number in workers])
    labels = [str(number) if number else "" for number in ahead]
    axes.set_yticks([at + 0.5 for at in range(len(ahead))], labels)
    axes.set(xlim=(0, len(workers)), ylim=(0, len(ahead)), xlabel="workers", ylabel="prefetch")
    bare(axes).tick_params(length=0)


def _shade(share: float) -> tuple[float, float, float]:
    """Mix white and the first colour of the reports."""
    full = tuple(int(COLOURS[0][at : at + 2], 16) / 255 for at in (1, 3, 5))
    share = 0.06 + 0.94 * min(1.0, max(0.0, share))
    red, green, blue = (1 + share * (part - 1) for part in full)
    return red, green, blue
