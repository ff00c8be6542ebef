"""`datapipe profile`: where a loader's time goes, and what would make it faster."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from datapipe.cli.loading import LOADER_FLAGS, Flags, with_flags
from datapipe.cli.mixture import mixture_in
from datapipe.cli.options import AsJson, Report, Shards
from datapipe.cli.output import shown_lines
from datapipe.cli.values import parse_seconds, refuse_unwritable
from datapipe.progress import PLAIN_EVERY, is_watched


@with_flags(*LOADER_FLAGS)
def profile(
    shards: Shards,
    flags: Flags,
    num_workers: Annotated[
        int | None, typer.Option(help="Number of workers.  [default: as make_loader]")
    ] = None,
    prefetch_factor: Annotated[int, typer.Option(help="Steps to prepare ahead.")] = 2,
    workers: Annotated[str, typer.Option(help="Kind: threads or processes.")] = "threads",
    decoder: Annotated[str, typer.Option(help="auto, cpu or dali.")] = "auto",
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
    options = flags.keywords(mixture_in(shards)) | {
        "num_workers": num_workers,
        "prefetch_factor": prefetch_factor,
        "workers": workers,
        "decoder": decoder,
        "epochs": None,
    }
    pace = None if step_time is None else parse_seconds(step_time, "--step-time")
    refuse_unwritable(report=report, trace=trace)
    from datapipe.loader.make_loader import make_loader
    from datapipe.profile.job import profile_loader
    from datapipe.profile.text import profile_text

    def make(**changes: Any) -> Any:
        return make_loader(shards, **(options | changes))

    with _phases() as say:
        found = profile_loader(make, shards=shards, seconds=seconds, step_time=pace, say=say)
    if trace is not None:
        from datapipe.report.trace import write_trace

        write_trace(trace, found.forecast.run.events)
    if report is not None:
        from datapipe.profile.page import write_report

        write_report(found, report)
    if as_json:
        print(json.dumps(found.to_dict()))
        return
    print(shown_lines(profile_text(found)))


@contextmanager
def _phases() -> Iterator[Callable[[str], None]]:
    """Show on stderr what is being measured: live on a terminal, else a line now and then."""
    if is_watched(sys.stderr):
        from rich.console import Console

        with Console(stderr=True).status("opening the dataset") as status:
            yield lambda phase: status.update(f"measuring: {phase}")
        return
    last = time.monotonic()

    def say(phase: str) -> None:
        nonlocal last
        if time.monotonic() - last >= PLAIN_EVERY:
            last = time.monotonic()
            print(f"measuring: {phase}", file=sys.stderr, flush=True)

    yield say
