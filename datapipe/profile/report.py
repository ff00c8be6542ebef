"""Profile as plain text and as one HTML page: the verdict first, then the figures behind it."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from datapipe.loader.metrics.meter import Stage
from datapipe.profile.forecast import WORTH, Remedy
from datapipe.profile.job import Profile
from datapipe.profile.measure.alone import STAGES
from datapipe.profile.pipeline import PipelineRun
from datapipe.report.charts import COLOURS, PALE, STAGE_COLOURS, stacked
from datapipe.report.page import Page
from datapipe.report.table import Table, aligned, counted, ms_text, rate_text, ratio, size_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 100  # characters of a line


def profile_text(profile: Profile) -> str:
    """Write the whole profile, in lines of at most some 100 characters."""
    good, bad = sorted_remedies(profile)
    fast = profile.bottleneck.stage == "step"
    stages = aligned(stage_table(profile))
    parts = [
        *(_wrapped(line) for line in (str(profile.bottleneck), *headline(profile))),
        ["", "Stages", *_indented(stages), *_wrapped(stage_notes(profile))],
        ["", "The loader at work", *_indented(aligned(work_table(profile), left=(0, 1, 2)))],
        ["", "What this machine can do", *_indented(aligned(ceiling_table(profile), left=(0, 4)))],
        ["", "What would make it faster" + (", where that is needed" if fast else "")],
        _remedies(good) or ["  nothing that datapipe knows of"],
    ]
    if bad:
        parts += [["", "What would not"], _remedies(bad, short=True)]
    return "\n".join(line for part in parts for line in part)


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


def headline(profile: Profile) -> list[str]:
    run = profile.forecast.run
    batches = ratio(run.reading.batches, run.reading.seconds)
    lines = [
        f"{rate_text(profile.rate)} samples/s with {profile.workers}, {rate_text(batches)} "
        f"batches/s of {profile.batch:,.0f} samples, of {profile.samples:,} in {profile.shards}"
    ]
    needed, paced = profile.needed, profile.paced
    if needed is not None and paced is not None and paced.step_time is not None:
        lines.append(
            f"Training takes {rate_text(needed)} samples/s at {1e3 * paced.step_time:,.0f} ms a "
            f"step; it waited {paced.waited:.1%} of the time"
        )
    others = run.usage.others_share
    if others > 0.1:
        lines.append(
            f"Other processes took {others:.0%} of the cores meanwhile: so figures are lower"
        )
    # A short run may not come to the samples that failed before it.
    if skipped := max(profile.forecast.alone.failed, run.skipped):
        lines.append(f"{counted(skipped, 'sample')} skipped, which cannot be read or decoded")
    return lines


def stage_table(profile: Profile) -> Table:
    alone, run = profile.forecast.alone.stages, profile.forecast.run
    stages = run.reading.all_stages
    total = sum(stage.seconds for stage in stages.values())
    rows = []
    for name in dict.fromkeys([*(s for s in STAGES if {s} & {*alone, *stages}), *stages]):
        row, cost, stage = [name, *["-"] * 4], alone.get(name), stages.get(name, Stage())
        if cost is not None:
            size = size_text(cost.bytes / max(cost.samples, 1))
            row[1:3] = [rate_text(cost.rate), size]
        if stage.seconds:
            each = stage.seconds / max(run.reading.samples, 1)
            row[3:] = [ms_text(each), f"{ratio(stage.seconds, total):.0%}"]
        rows.append(row)
    return ["", "samples/s alone", "bytes", "ms/sample in the loader", "of its time"], rows


def stage_notes(profile: Profile) -> str:
    alone = profile.forecast.alone
    return (
        f"Alone: {alone.samples:,} samples of {alone.images:.2g} images each, on one core. Bytes "
        "are those read or made for a sample. The last column is the share of all threads' time."
    )


def work_table(profile: Profile) -> Table:
    """List how busy the threads were, and how long batches were waited for."""
    columns = [_work(run) for run in profile.runs.values()]
    rows = [[name, *(column.get(name, "-") for column in columns)] for name in columns[0]]
    return ["", *profile.runs], rows


def _work(run: PipelineRun) -> dict[str, str]:
    reading, usage = run.reading, run.usage
    rows = {
        "samples/s": rate_text(run.rate),
        "waiting for batches": f"{run.waited:.1%} of the time",
    }
    if reading.workers:
        rows["workers without work"] = f"{run.idle:.0%} of their time"
        if reading.ready:
            ready = np.array(reading.ready)
            rows["batches ready"] = (
                f"{ready.mean():.1f} on average, {(ready == 0).mean():.0%} of the time none"
            )
    seconds = max(usage.seconds, 1e-9)
    rows["cores in use"] = f"{usage.cpu / seconds:.1f} of {usage.cores}"
    if usage.gil is not None:
        rows["waiting for Python's lock"] = f"{usage.gil:.0%} of a thread's time"
    if usage.read is not None:
        rows["read from storage"] = f"{size_text(usage.read / seconds)}/s" if usage.read else "none"
    rows["memory"] = size_text(usage.memory)
    return rows


def ceiling_table(profile: Profile) -> Table:
    rows = [
        [
            name,
            rate_text(found.rate),
            f"{size_text(found.bandwidth)}/s" if found.bandwidth else "-",
            f"{ratio(profile.rate, found.rate):.0%}",
            f"{found.note}; {counted(found.threads, 'thread')}",
        ]
        for name, found in profile.forecast.roofline.ceilings.items()
    ]
    return ["", "samples/s", "bytes", "reached", ""], rows


def remedy_table(remedies: Sequence[Remedy]) -> Table:
    rows = [
        [
            remedy.name.replace("_", " "),
            f"{remedy.gain:.2f} x",
            rate_text(remedy.rate),
            remedy.source,
            "; ".join(part for part in (remedy.title, remedy.how, remedy.note) if part),
        ]
        for remedy in remedies
    ]
    return ["", "gain", "samples/s", "", "what"], rows


def sorted_remedies(profile: Profile) -> tuple[list[Remedy], list[Remedy]]:
    """Divide the remedies into those that are worth applying, and the others."""
    good = [remedy for remedy in profile.remedies if remedy.gain >= WORTH]
    return good, [remedy for remedy in profile.remedies if remedy.gain < WORTH]


def _remedies(remedies: Sequence[Remedy], *, short: bool = False) -> list[str]:
    lines = []
    for remedy in remedies:
        rate = f"{rate_text(remedy.rate)}/s" + (", measured" * (remedy.source == "measured"))
        lines.append(f"  {remedy.gain:5.2f} x  {remedy.title} ({rate})")
        details = [remedy.how] if short else [remedy.how, remedy.note]
        lines += [f"           {detail}" for detail in details if detail]
    return lines


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
