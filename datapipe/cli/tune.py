"""`datapipe tune-workers`: how many workers a loader should have here."""

from __future__ import annotations

import json
import shlex
import sys
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import typer

import datapipe
from datapipe.cli.loading import LOADER_FLAGS, Flags, maker_of, with_flags
from datapipe.cli.options import AsJson, OptionalShards, Report
from datapipe.cli.output import shown
from datapipe.cli.values import (
    parse_numbers,
    parse_seconds,
    parse_share,
    refuse_unwritable,
    resolve_target,
)
from datapipe.declared import check_value
from datapipe.errors import PlanError
from datapipe.progress import Progress
from datapipe.quantities import Bytes

if TYPE_CHECKING:
    from datapipe.tune.result import TuneResult
    from datapipe.tune.trial import Trial

_KINDS = {"workers": ("threads", "processes"), "decoder": ("auto", "cpu", "dali")}


@with_flags(*LOADER_FLAGS)
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
    budget: Annotated[str, typer.Option(help="Time for everything, such as 60s.")] = "60s",
    num_workers: Annotated[
        str | None,
        typer.Option(help="Numbers to try, such as 0,1,2,4.  [default: up to twice the CPUs]"),
    ] = None,
    prefetch_factor: Annotated[str, typer.Option(help="Numbers to try, such as 2,4.")] = "2,4",
    workers: Annotated[
        str, typer.Option(help="Kinds to try: threads, processes, or threads,processes.")
    ] = "threads",
    decoder: Annotated[
        str, typer.Option(help="Decoders to try: auto, cpu, dali, or cpu,dali.")
    ] = "auto",
    step_time: Annotated[
        str | None,
        typer.Option(help="Time of a training step, such as 120ms: find what keeps up with it."),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            help="Your step of training as module:function, called with a batch, instead."
        ),
    ] = None,
    max_wait: Annotated[
        str, typer.Option(help="Share of its time that training may wait, such as 1%.")
    ] = "1%",
    max_memory: Annotated[
        str | None, typer.Option(help="Memory of all processes together, such as 8GB.")
    ] = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Find the smallest number of workers that is as fast as any, or as training needs.

    The loader is the real one, with the options that make_loader would be given. Trials are
    interleaved and repeated; what is found is kept for num_workers="auto" of make_loader.
    """
    options: dict[str, Any] = {
        "budget": parse_seconds(budget, "--budget"),
        "prefetch_factor": parse_numbers(prefetch_factor, "--prefetch-factor"),
        "max_wait": parse_share(max_wait, "--max-wait"),
    }
    if max_memory is not None:
        options["max_memory"] = check_value("--max-memory", max_memory, Bytes, PlanError)
    if step_time is not None and train is not None:
        raise PlanError("--step-time and --train: give one, the other says the same")
    if step_time is not None:
        options["step_time"] = parse_seconds(step_time, "--step-time")
    if train is not None:
        options["train"] = resolve_target(train, "--train")
    refuse_unwritable(report=report)
    kinds = {"workers": workers, "decoder": decoder}
    if target is not None:
        _refuse_beside_target(shards, flags, kinds)
        make: Any = resolve_target(target, "--target")
    elif shards is None:
        raise PlanError("give SHARDS, the folder of a dataset, or --target module:function")
    else:
        asked = {name: _several(name, text) for name, text in kinds.items()}
        several = {name: values for name, values in asked.items() if len(values) > 1}
        options["variants"] = [
            dict(zip(several, values, strict=True)) for values in product(*several.values())
        ]
        fixed = {name: values[0] for name, values in asked.items() if name not in several}
        make = maker_of(shards, flags, **fixed)
    options["num_workers"] = (
        _workers_to_try() if num_workers is None else parse_numbers(num_workers, "--num-workers")
    )
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


def _several(name: str, asked: str) -> list[str]:
    values = [value.strip() for value in asked.split(",")]
    for value in values:
        if value not in _KINDS[name]:
            kinds = ", ".join(_KINDS[name])
            raise PlanError(f"--{name} {asked!r}: {value!r} is not one of {kinds}")
    return values


def _refuse_beside_target(shards: str | None, flags: Flags, kinds: dict[str, str]) -> None:
    given = [] if shards is None else [shards]
    given += flags.given()
    given += [f"--{name} {kind}" for name, kind in kinds.items() if kind not in ("threads", "auto")]
    if given:
        raise PlanError(f"--target makes its own loader, so {given[0]} has no effect; leave it out")


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
    print(f"{len(result.trials)} trials in {result.seconds:.0f} s")
