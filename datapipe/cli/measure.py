"""`datapipe profile` and `tune-workers`: where a loader's time goes, how many workers it needs."""

from __future__ import annotations

import json
import shlex
import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import datapipe
from datapipe.cli import values
from datapipe.cli.fields import own_flag
from datapipe.cli.loading import LOADER_FLAGS, Flags, maker_of, with_flags
from datapipe.cli.options import AsJson, OptionalShards, Report, Shards
from datapipe.cli.output import shown, shown_lines
from datapipe.errors import PlanError
from datapipe.progress import Progress
from datapipe.report.table import counted

if TYPE_CHECKING:
    from datapipe.tune.result import TuneResult
    from datapipe.tune.trial import Trial


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
    pace = None if step_time is None else values.parse_seconds(step_time, "--step-time")
    values.refuse_unwritable(report=report, trace=trace)
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


_TUNE_FLAGS = (
    own_flag("budget", "Time for everything, such as 60s.", str, "60s", values.parse_seconds),
    own_flag(
        "num_workers",
        "Numbers to try, such as 0,1,2,4.  [default: up to twice the CPUs]",
        parse=values.parse_numbers,
    ),
    own_flag("prefetch_factor", "Numbers to try, such as 2,4.", str, "2,4", values.parse_numbers),
    own_flag(
        "step_time",
        "Time of a training step, such as 120ms: find what keeps up with it.",
        parse=values.parse_seconds,
    ),
    own_flag(
        "train",
        "Your step of training as module:function, called with a batch, instead.",
        parse=values.resolve_target,
    ),
    own_flag(
        "max_wait",
        "Share of its time that training may wait, such as 1%.",
        default="1%",
        parse=values.parse_share,
    ),
    own_flag(
        "max_memory", "Memory of all processes together, such as 8GB.", parse=values.parse_bytes
    ),
)
"""Options that are arguments of `datapipe.tune_workers`, with its defaults."""

_KIND_FLAGS = (
    own_flag(
        "workers",
        "Kinds to try: threads, processes, or threads,processes.",
        default="threads",
        parse=values.names_among("threads", "processes"),
    ),
    own_flag(
        "decoder",
        "Decoders to try: auto, cpu, dali, or cpu,dali.",
        default="auto",
        parse=values.names_among("auto", "cpu", "dali"),
    ),
)


@with_flags(*_TUNE_FLAGS, *_KIND_FLAGS, *LOADER_FLAGS)
def tune_workers(
    flags: Flags,
    shards: OptionalShards = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Tune your own loader instead: module:function, or file.py:function, called with "
            "num_workers= and prefetch_factor=, that returns any iterable of batches."
        ),
    ] = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Find the smallest number of workers that is as fast as any, or as training needs.

    The loader is the real one, with the options that make_loader would be given. Trials are
    interleaved and repeated; what is found is kept for num_workers="auto" of make_loader.
    """
    if flags.values["step_time"] is not None and flags.values["train"] is not None:
        raise PlanError("--step-time and --train: give one, the other says the same")
    options: dict[str, Any] = {"budget": 60.0, "num_workers": _workers_to_try()}
    options |= Flags(_TUNE_FLAGS, flags.values).given_to(None)
    kinds = Flags(_KIND_FLAGS, flags.values)
    flags = Flags(LOADER_FLAGS, flags.values)
    values.refuse_unwritable(report=report)
    if target is not None:
        if given := [*([] if shards is None else [shards]), *flags.given(), *kinds.given()]:
            raise PlanError(
                f"--target makes its own loader, so {given[0]} has no effect; leave it out"
            )
        make: Any = values.resolve_target(target, "--target")
    elif shards is None:
        raise PlanError("give SHARDS, the folder of a dataset, or --target module:function")
    else:
        asked = kinds.given_to(None)
        several = {name: found for name, found in asked.items() if len(found) > 1}
        options["variants"] = [
            dict(zip(several, chosen, strict=True)) for chosen in product(*several.values())
        ]
        fixed = {name: found[0] for name, found in asked.items() if name not in several}
        make = maker_of(shards, flags, **fixed)
    total = round(1000 * options["budget"])
    with Progress("tuning", unit="trial", total=total, total_unit="ms") as bar:

        def tell(trial: Trial) -> None:
            note = f"{trial.setting}: {trial.rate:,.1f} batches/s"
            bar.advance(of_total=round(1000 * trial.total), note=note)

        result = datapipe.tune_workers(make, **options, on_trial=tell)
    name = target or shards or ""
    command = " ".join([shlex.quote(name), *flags.given()])
    if report is not None:
        from datapipe.tune.result import write_report

        title = f"--target {name}" if target else command
        write_report(result, report, f"datapipe tune-workers {title}")
    profile = None if target else f"datapipe profile {command}"
    _print(result, name, profile=profile, as_json=as_json)
    if result.interrupted:
        raise typer.Exit(130)


def _workers_to_try() -> tuple[int, ...]:
    """Return powers of two up to twice the CPUs of this rank, and the number of CPUs."""
    from datapipe.loader.distributed import default_workers

    cpus = default_workers()
    return tuple(sorted({0, cpus, *(1 << power for power in range((2 * cpus).bit_length()))}))


def _print(result: TuneResult, name: str, *, profile: str | None, as_json: bool) -> None:
    from datapipe.report.table import aligned
    from datapipe.tune.result import chosen_text, result_text, settings_table

    if as_json:
        print(json.dumps({"tuned": name, **result.to_dict()}))
        return
    if result.interrupted:
        print("Interrupted; these are the results so far.", file=sys.stderr)
    print(f"{shown(name)}: {chosen_text(result)}")
    print(f"  {result_text(result)}")
    print(f"  {shown(result.reason)}.")
    if profile is not None:
        print("  Kept: make_loader(num_workers='auto', prefetch_factor='auto') takes it here.")
        print(f"  What would make it faster: {shown(profile)}")
    for line in aligned(settings_table(result.settings), left=(-1,)):
        print(shown(line))
    print(f"{counted(len(result.trials), 'trial')} in {result.seconds:.0f} s")
