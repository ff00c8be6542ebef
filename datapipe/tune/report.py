"""Result of a sweep as text, and as one HTML page with figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from datapipe.report.charts import COLOURS, INK, PALE, bare, new_figure, plot
from datapipe.report.page import Page
from datapipe.report.table import Table, size_text
from datapipe.tune.result import Tried, TuneResult
from datapipe.tune.sweep import TOUCH

if TYPE_CHECKING:
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
    text = f"{result.rate:,.1f} batches/s"
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
        "of the fastest": _or_dash(row.ratio, "{0.median:.2f} ({0.low:.2f}-{0.high:.2f})"),
        "samples/s": _or_dash(row.samples, "{:,.0f}"),
        **{name: "-" if t is None else f"{1000 * t:,.1f}" for name, t in times.items()},
        "start s": _or_dash(row.startup, "{:.2f}"),
        "memory": size_text(row.memory),
        "trials": str(row.trials),
        "waiting": _or_dash(row.waiting, "{:.1%}"),
        "": row.out,
    }


def _or_dash(value: object, form: str) -> str:
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
    most = max(row.rate or 0.0 for row in result.settings) or 1.0
    for at, kind in enumerate(kinds):
        axes = figure.add_subplot(len(kinds), 1, at + 1)
        rows = [row for row in result.settings if row.setting.variant == kind]
        workers = sorted({row.setting.num_workers for row in rows})
        ahead = sorted({row.setting.prefetch_factor or 0 for row in rows})
        for row in rows:
            x = workers.index(row.setting.num_workers)
            y = ahead.index(row.setting.prefetch_factor or 0)
            share = (row.rate or 0.0) / most
            axes.bar(x, 1, 1, bottom=y - 0.5, color=COLOURS[0], alpha=share)
            ink = "white" if share > _DARK else INK
            text = _or_dash(row.rate, "{:,.1f}")
            axes.text(x, y, text, ha="center", va="center", color=ink)
            if row is result.chosen:
                frame = axes.bar(x, 1, 1, bottom=y - 0.5, color="none", zorder=3)
                frame.patches[0].set(edgecolor=COLOURS[1], linewidth=3)
        axes.set_xticks(range(len(workers)), [str(number) for number in workers])
        axes.set_yticks(range(len(ahead)), [str(number or "") for number in ahead])
        axes.set(xlabel="workers", ylabel="prefetch")
        bare(axes).tick_params(length=0)
        if len(kinds) > 1:
            axes.set_title(", ".join(str(value) for _, value in kind) or "as it is", loc="left")
    return figure


def drift(result: TuneResult) -> Figure:
    """Draw each trial's rate over the median of its setting's, in order."""
    figure, axes = plot()
    rates = {row.setting: row.rate for row in result.settings if row.trials > 1}
    trials = [t for t in result.trials if t.setting in rates and not t.paced and t.round != TOUCH]
    values = [100 * (trial.rate / (rates[trial.setting] or 1.0) - 1) for trial in trials]
    axes.axhline(0, color=PALE, linewidth=1)
    times = [trial.began - result.trials[0].began for trial in trials]
    axes.scatter(times, values, color=COLOURS[0], s=18)
    axes.set(xlabel="seconds", ylabel="% from its setting's median")
    return figure
