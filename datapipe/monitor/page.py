"""Report of a monitor as one HTML page."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from datapipe.monitor.report import PARTS, LoopReport, notes, parts, tables
from datapipe.report.charts import COLOURS, legend, plot, stacked
from datapipe.report.page import Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Waiting has the colour that stands out.
_COLOURS = {"wait": COLOURS[1], "transfer": COLOURS[4], "step": COLOURS[0], "rest": COLOURS[7]}


def save_page(report: LoopReport, path: str | os.PathLike[str]) -> None:
    """Write the page, without parts that were not measured."""
    page = Page("Training loop", " · ".join(notes(report)))
    page.verdict(report.verdict.sentence, report.verdict.level)
    for number, action in enumerate(report.verdict.actions, start=1):
        page.text(f"{number}. {action}")
    if report.turns:
        shares, colours = {}, {}
        for name, share in parts(report).items():
            label = f"{PARTS[name]} {share:.1%}"
            shares[label], colours[label] = share, _COLOURS[name]
        page.figure("Where the time goes", stacked([("", shares)], colours))
    for heading, table in tables(report):
        page.table(heading, *table)
    if report.turns:
        page.figure("Time of a step, from the first step to the last", _timeline(report))
    if report.stages:
        page.figure("Time of the loader's stages, on a processor and waiting", _stages(report))
    page.save(path)


def _timeline(report: LoopReport) -> Figure:
    stretches = report.timeline
    edges = [part.first for part in stretches]
    edges.append(stretches[-1].first + stretches[-1].turns)
    figure, axes = plot()
    below = [0.0] * len(stretches)
    # The step, which should be the largest part, is near the bottom.
    for name in ("rest", "step", "transfer", "wait"):
        heights = [1e3 * getattr(part, name) / part.turns for part in stretches]
        if any(heights):
            tops = [low + height for low, height in zip(below, heights, strict=True)]
            axes.stairs(tops, edges, baseline=below, fill=True, color=_COLOURS[name])
            below = tops
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, None), xlabel="step", ylabel="ms a step")
    legend(figure, {PARTS[name]: _COLOURS[name] for name in parts(report)})
    return figure


def _stages(report: LoopReport) -> Figure:
    rows = []
    for name, stage in sorted(report.stages.items(), key=lambda stage: -stage[1].seconds):
        busy = min(stage.cpu, stage.seconds)
        rows.append((name, {"on a processor": busy, "waiting": stage.seconds - busy}))
    colours = {"on a processor": COLOURS[0], "waiting": COLOURS[1]}
    return stacked(rows, colours, "seconds, all threads together")
