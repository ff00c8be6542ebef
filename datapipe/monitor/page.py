"""Report of a monitor as one HTML page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from datapipe.monitor.durations import Bucket, Timing
from datapipe.monitor.report import LoopReport, notes, parts, tables
from datapipe.report.charts import COLOURS, legend, plot, stacked
from datapipe.report.page import Page
from datapipe.report.table import time_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Waiting has the colour that stands out.
_PARTS = {
    "waiting for batches": COLOURS[1],
    "transfer": COLOURS[4],
    "step": COLOURS[0],
    "rest of the loop": COLOURS[7],
}


def save_page(report: LoopReport, path: str | os.PathLike[str]) -> None:
    """Write the page, without parts that were not measured."""
    page = Page("Training loop", " · ".join(notes(report)))
    page.verdict(report.verdict.sentence, report.verdict.level)
    for number, action in enumerate(report.verdict.actions, start=1):
        page.text(f"{number}. {action}")
    if report.turns:
        page.figure("Where the time goes", *_shares(report))
    for heading, table in tables(report):
        page.table(heading, *table)
    if report.turns:
        page.figure(
            "Over the run",
            _timeline(report),
            "time of a step and what it is made of, from the first step to the last",
        )
    if report.step_times:
        page.figure(
            "Steps by how long they take",
            _histogram(report.step_times, report.step),
            f"histogram of step times, half of them under {time_text(report.step.p50)}",
        )
    if report.stages:
        page.figure(
            "What the loader's threads do",
            _stages(report),
            "seconds of each stage, on a processor and waiting",
        )
    page.save(path)


def _shares(report: LoopReport) -> tuple[Figure, str]:
    """Draw one bar of the shares of all parts."""
    shares = {name: share for name, share, _ in parts(report)}
    labelled = {f"{name} {share:.1%}": share for name, share in shares.items()}
    colours = {label: _PARTS[name] for label, name in zip(labelled, shares, strict=True)}
    return stacked([("", labelled)], colours), ", ".join(labelled)


def _timeline(report: LoopReport) -> Figure:
    """Draw the time of a step and its parts, over the steps."""
    stretches = report.timeline
    size, unit = _scale(max(sum(part[2:]) / part.turns for part in stretches))
    edges = [part.first for part in stretches]
    edges.append(stretches[-1].first + stretches[-1].turns)
    figure, axes = plot()
    below = [0.0] * len(stretches)
    # The step, which should be the largest part, is near the bottom.
    for name, at in zip(reversed(_PARTS), (5, 4, 3, 2), strict=True):
        heights = [part[at] / part.turns / size for part in stretches]
        if any(heights):
            tops = [low + height for low, height in zip(below, heights, strict=True)]
            axes.stairs(tops, edges, baseline=below, fill=True, color=_PARTS[name])
            below = tops
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, None), xlabel="step", ylabel=f"{unit} a step")
    legend(figure, {name: _PARTS[name] for name, _, _ in parts(report)})
    return figure


def _histogram(buckets: Sequence[Bucket], timing: Timing) -> Figure:
    """Draw steps by how long they took, with the percentiles."""
    size, unit = _scale(timing.p99)
    figure, axes = plot(2.6)
    # The width of buckets grows with the duration, so on this scale they are equally wide.
    axes.set_xscale("log")
    axes.bar(
        [bucket.low / size for bucket in buckets],
        [bucket.times for bucket in buckets],
        [(bucket.high - bucket.low) / size for bucket in buckets],
        align="edge",
        color=_PARTS["step"],
    )
    for name, value in (("P50", timing.p50), ("P90", timing.p90), ("P99", timing.p99)):
        axes.axvline(value / size, color="#444", linewidth=1, linestyle=":")
        where = (value / size, max(bucket.times for bucket in buckets))
        axes.annotate(f"{name} ", where, ha="right", va="top", fontsize=9, color="#444")
    axes.set(xlabel=f"{unit} a step", ylabel="steps")
    return figure


def _stages(report: LoopReport) -> Figure:
    """Draw seconds of each stage, on a processor and without one."""
    rows = [
        (
            name,
            {
                "on a processor": min(stage.cpu, stage.seconds),
                "waiting": max(stage.seconds - stage.cpu, 0.0),
            },
        )
        for name, stage in sorted(report.stages.items(), key=lambda stage: -stage[1].seconds)
    ]
    colours = {"on a processor": COLOURS[0], "waiting": COLOURS[1]}
    return stacked(rows, colours, "seconds, all threads together")


def _scale(seconds: float) -> tuple[float, str]:
    """Choose a unit; return its seconds and its name."""
    return (1.0, "s") if seconds >= 1 else (1e-3, "ms") if seconds >= 1e-3 else (1e-6, "µs")
