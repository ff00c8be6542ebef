"""Report of a monitor as one HTML page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from datapipe.monitor.durations import Bucket, Timing
from datapipe.monitor.report import LoopReport, dataset_table, gpu_text, parts, time_table
from datapipe.report.charts import COLOURS, legend, plot, stacked
from datapipe.report.page import Page
from datapipe.report.table import Table, time_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Waiting has the colour that stands out.
_PARTS = {
    "waiting for batches": COLOURS[1],
    "transfer": COLOURS[4],
    "step": COLOURS[0],
    "rest of the loop": COLOURS[7],
}
_BARS = 60  # of a histogram


def save_page(report: LoopReport, path: str | os.PathLike[str]) -> None:
    """Write the page, without parts that were not measured."""
    page = Page("Training loop", _subtitle(report))
    page.verdict(report.verdict.sentence, report.verdict.level)
    for number, action in enumerate(report.verdict.actions, start=1):
        page.text(f"{number}. {action}")
    if report.turns:
        page.figure("Where the time goes", *_shares(report))
        page.table("How long each takes", *time_table(report))
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
    if report.datasets:
        page.table("Datasets of the mixture", *dataset_table(report))
    if report.stages:
        page.figure(
            "What the loader's threads do",
            _stages(report),
            "seconds of each stage, on a processor and waiting",
        )
    if report.lines:
        page.table("Lines that wait", *_lines(report))
    page.save(path)


def _subtitle(report: LoopReport) -> str:
    texts = [f"{report.turns:,} steps in {report.seconds:,.0f} s"]
    if report.left_out:
        texts.append(f"{sum(report.left_out.values())} more are left out of the figures")
    if report.first.count:
        texts.append(f"first batch after {time_text(report.first.p50)}")
    if report.gpu is not None:
        texts.append(gpu_text(report.gpu))
    return " · ".join(texts)


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
    low = buckets[0].low
    high = max(timing.p99 * 1.25, buckets[0].high)
    edges = np.linspace(low, high, _BARS + 1)
    # Buckets and bars have other edges: each bar gets the part of a bucket that it covers.
    ends = [edge for bucket in buckets for edge in (bucket.low, bucket.high)]
    sums = np.cumsum([count for bucket in buckets for count in (0, bucket.times)])
    counts = np.diff(np.interp(edges, ends, sums))
    beyond = sum(bucket.times for bucket in buckets if (bucket.low + bucket.high) / 2 >= high)
    edges /= size
    figure, axes = plot(2.6)
    axes.stairs(counts, edges, fill=True, color=_PARTS["step"])
    for name, value in (("P50", timing.p50), ("P90", timing.p90), ("P99", timing.p99)):
        axes.axvline(value / size, color="#444", linewidth=1, linestyle=":")
        where = (value / size, counts.max())
        axes.annotate(f"{name} ", where, ha="right", va="top", fontsize=9, color="#444")
    axes.set(xlim=(edges[0], edges[-1]), xlabel=f"{unit} a step", ylabel="steps")
    if beyond:
        longer = f"{beyond:,} longer, up to {time_text(timing.longest)}"
        axes.set_title(longer, loc="right", fontsize=9)
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


def _lines(report: LoopReport) -> Table:
    rows = [
        [line.call, line.where, f"{line.count:,}", time_text(line.seconds)]
        for line in report.lines[:12]
    ]
    return ["call", "line", "calls", f"time in {report.blocked.turns} steps probed"], rows


def _scale(seconds: float) -> tuple[float, str]:
    """Choose a unit; return its seconds and its name."""
    return (1.0, "s") if seconds >= 1 else (1e-3, "ms") if seconds >= 1e-3 else (1e-6, "µs")
