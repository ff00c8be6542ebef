"""`datapipe profile`: where a loader's time goes, and what would make it faster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from datapipe.cli.fields import own_flag
from datapipe.cli.loading import LOADER_FLAGS, Flags, maker_of, with_flags
from datapipe.cli.options import AsJson, Report, Shards
from datapipe.cli.output import shown_lines
from datapipe.cli.values import parse_seconds, refuse_unwritable
from datapipe.progress import Progress


@with_flags(
    *LOADER_FLAGS,
    own_flag("num_workers", "Number of workers.  [default: as make_loader]", int),
    own_flag("prefetch_factor", "Steps to prepare ahead.", int, 2),
    own_flag("workers", "Kind: threads or processes.", str, "threads"),
    own_flag("decoder", "auto, cpu or dali.", str, "auto"),
)
def profile(
    shards: Shards,
    flags: Flags,
    seconds: Annotated[float, typer.Option(help="Time to measure the running loader.")] = 10.0,
    step_time: Annotated[
        str | None, typer.Option(help="Time of a training step, such as 120ms.")
    ] = None,
    report: Report = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a timeline for chrome://tracing or Perfetto.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find out what holds a loader back, and what would make it faster here."""
    pace = None if step_time is None else parse_seconds(step_time, "--step-time")
    refuse_unwritable(report=report, trace=trace)
    from datapipe.profile.job import profile_loader
    from datapipe.profile.report import profile_text

    make = maker_of(shards, flags)
    with Progress("measuring", unit="phase") as bar:
        found = profile_loader(
            make,
            shards=shards,
            seconds=seconds,
            step_time=pace,
            say=lambda phase: bar.advance(note=phase),
        )
    if trace is not None:
        from datapipe.report.trace import write_trace

        write_trace(trace, found.forecast.run.events)
    if report is not None:
        from datapipe.profile.report import write_report

        write_report(found, report)
    if as_json:
        print(json.dumps(found.to_dict()))
        return
    print(shown_lines(profile_text(found)))
