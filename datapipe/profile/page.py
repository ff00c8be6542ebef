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
from datapipe.report.charts import COLOURS, PALE, STAGE_COLOURS, stacked
from datapipe.report.page import Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_report(profile: Profile, path: str | os.PathLike[str]) -> None:
    good, bad = sorted_remedies(profile)
    page = Page("Where a loader's time goes", f"datapipe profile {profile.shards}")
    verdict = str(profile.bottleneck)
    page.verdict(verdict[0].upper() + verdict[1:], profile.bottleneck.level)
    for line in headline(profile):
        page.text(f"{line}.")
    page.figure("Time of workers, and of the thread that takes batches", time_figure(profile))
    if good:
        page.figure("Samples per second with each remedy", remedy_figure(profile, good))
    page.table("Remedies", *remedy_table([*good, *bad]))
    page.table("What this machine can do", *ceiling_table(profile))
    page.table("Stages", *stage_table(profile))
    page.text(stage_notes(profile))
    page.table("The loader at work", *work_table(profile))
    page.save(path)


def time_figure(profile: Profile) -> Figure:
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
    bars = [("as it is", {"today": profile.rate})]
    bars += [(remedy.name.replace("_", " "), {remedy.source: remedy.rate}) for remedy in remedies]
    colours = {"today": COLOURS[0], "predicted": COLOURS[2], "measured": COLOURS[1]}
    return stacked(bars, colours, "samples/s")
