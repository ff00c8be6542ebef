"""Result of a sweep as text, and as one HTML page."""

from __future__ import annotations

import os
from collections.abc import Sequence

from datapipe.report.charts import COLOURS, PALE, stacked
from datapipe.report.page import Page
from datapipe.report.table import Table, size_text
from datapipe.tune.result import SettingResult, TuneResult


def settings_table(rows: Sequence[SettingResult]) -> Table:
    """List the results of every setting, without columns that would be empty."""
    cells = [_cells(row) for row in rows]
    empty = {
        "kind": len({row.setting.variant for row in rows}) <= 1,
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
    return {
        "workers": str(row.setting.num_workers),
        "prefetch": _or_dash(row.setting.prefetch_factor, "{}"),
        "kind": ", ".join(str(value) for _, value in row.setting.variant) or "-",
        "batches/s": _or_dash(row.rate, "{:,.1f}"),
        "of the fastest": _or_dash(row.ratio, "{0.median:.2f} ({0.low:.2f}-{0.high:.2f})"),
        "samples/s": _or_dash(row.samples, "{:,.0f}"),
        "start s": _or_dash(row.startup, "{:.2f}"),
        "memory": size_text(row.memory),
        "trials": str(row.trials),
        "waiting": _or_dash(row.waiting, "{:.1%}"),
        "": row.out,
    }


def _or_dash(value: object, form: str) -> str:
    return "-" if value is None else form.format(value)


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
