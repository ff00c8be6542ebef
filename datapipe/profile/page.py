"""Profile as one HTML page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from datapipe.profile.forecast import Remedy
from datapipe.profile.job import Profile
from datapipe.profile.text import (
    ceiling_table,
    headline,
    remedy_table,
    sorted_remedies,
    stage_notes,
    stage_table,
    work_table,
)
from datapipe.report.charts import COLOURS, IDLE, INK, PALE, STAGE_COLOURS, legend, plot, stacked
from datapipe.report.page import Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BATCHES = 4  # that the timeline shows


def write_report(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write the report of a profile."""
    good, bad = sorted_remedies(profile)
    page = Page("Where a loader's time goes", f"datapipe profile {profile.shards}")
    verdict = str(profile.bottleneck)
    page.verdict(verdict[0].upper() + verdict[1:], profile.bottleneck.level)
    for line in headline(profile):
        page.text(f"{line}.")
    page.figure(
        "Where time goes",
        time_figure(profile),
        "Shares of the time of workers, and of the thread that takes batches",
    )
    if good:
        page.figure(
            "What would make it faster",
            remedy_figure(profile, good),
            "Samples per second that each remedy is predicted to give",
        )
    page.table("Remedies", *remedy_table([*good, *bad]))
    page.table("What this machine can do", *ceiling_table(profile))
    page.table("Stages", *stage_table(profile))
    page.text(stage_notes(profile))
    page.figure(
        "Who did what when",
        timeline_figure(profile),
        "Stages of every thread over some batches",
    )
    page.table("The loader at work", *work_table(profile))
    page.save(path)


def time_figure(profile: Profile) -> Figure:
    """Draw the time of the workers, and of the thread that takes the batches."""
    reading = profile.forecast.run.reading
    spent = {name: stage.seconds for name, stage in reading.stages.items()}
    caller = {name: stage.seconds for name, stage in reading.caller.items()}
    rows: list[tuple[str, dict[str, float]]] = []
    if reading.workers:
        rows.append(("workers", spent | {"no work": reading.idle}))
    else:
        caller = spent | caller
    waiting = max(0.0, reading.waited - sum(caller.values()))
    rows.append(("the caller", caller | {"waits": waiting}))
    if profile.paced is not None:
        paced = profile.paced.reading
        rest = max(0.0, paced.seconds - paced.waited)
        rows.append(("the same, at\ntraining's pace", {"waits": paced.waited, "training": rest}))
    return stacked(rows, STAGE_COLOURS | {"training": PALE})


def remedy_figure(profile: Profile, remedies: Sequence[Remedy]) -> Figure:
    """Draw the rate of each remedy, below that of today."""
    rates = {"as it is": profile.rate}
    rates |= {remedy.name.replace("_", " "): remedy.rate for remedy in remedies}
    notes = [
        f"{remedy.gain:.2f} x" + (" (measured)" if remedy.source == "measured" else "")
        for remedy in remedies
    ]
    figure, axes = plot(1.0 + 0.325 * len(rates))
    colours = [COLOURS[0], *[COLOURS[2]] * len(remedies)]
    drawn = axes.barh(range(len(rates)), list(rates.values()), height=0.62, color=colours)
    axes.bar_label(drawn, ["", *notes], padding=3, fontsize=8, color=INK)
    axes.axvline(profile.rate, color=COLOURS[0], linewidth=1)
    axes.margins(x=0.2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.set_yticks(range(len(rates)), list(rates))
    axes.invert_yaxis()
    axes.set_xlabel("samples/s, predicted")
    return figure


def timeline_figure(profile: Profile) -> Figure:
    """Draw the stages of every thread over some batches."""
    run = profile.forecast.run
    events, reading = run.events, run.reading
    begin = min(event.start for event in events)
    # From the middle, when the loader has reached its pace.
    middle = begin + (max(event.end for event in events) - begin) // 3
    end = middle + int(1e9 * _BATCHES * reading.seconds / max(reading.batches, 1))
    window = [event for event in events if event.end > middle and event.start < end]
    rows = sorted({event.row for event in events}, key=lambda row: (row == "caller", row))
    figure, axes = plot(0.95 + 0.34 * len(rows), "bottom")
    for at, row in enumerate(rows):
        axes.barh(at, (end - middle) / 1e6, height=0.7, color=IDLE)
        for stage, colour in STAGE_COLOURS.items():
            spans = [
                ((event.start - middle) / 1e6, (event.end - event.start) / 1e6)
                for event in window
                if event.row == row and event.stage == stage
            ]
            axes.broken_barh(spans, (at - 0.35, 0.7), facecolors=colour, linewidth=0)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlim(0, (end - middle) / 1e6)
    axes.set_xlabel("ms")
    axes.invert_yaxis()
    stages = {event.stage for event in window}
    legend(figure, {name: c for name, c in STAGE_COLOURS.items() if name in stages})
    return figure
