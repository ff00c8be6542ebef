"""`datapipe plan`: what an epoch will be, before a byte of an image is read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

import datapipe
from datapipe.cli.fields import own_flag
from datapipe.cli.loading import PLAN_FLAGS, Flags, with_flags
from datapipe.cli.mixture import (
    REASONS,
    datasets_table,
    dropping_overlong,
    mixture_in,
    phase_lines,
    refuses_overlong,
)
from datapipe.cli.options import AsJson, Shards
from datapipe.cli.output import bars, print_table, shown_lines
from datapipe.errors import PlanError
from datapipe.report.table import aligned, counted

if TYPE_CHECKING:
    from datapipe.loader.loader import Loader
    from datapipe.loader.plan_report import MixturePlan, PlanReport
    from datapipe.plan.summary import LengthBin


@with_flags(
    *PLAN_FLAGS, own_flag("group", "Units of equal cost; 64, or one step if that has more.", int)
)
def plan(
    shards: Shards,
    flags: Flags,
    world_size: Annotated[int, typer.Option(help="Number of ranks.")] = 1,
    epoch: Annotated[int, typer.Option(help="Number of the epoch.")] = 0,
    epochs: Annotated[
        int | None,
        typer.Option(help="Epochs of the run, to count the passes over a mixture's datasets."),
    ] = None,
    validation: Annotated[
        bool, typer.Option("--validation", help="Plan the validation of a mixture.")
    ] = False,
    step: Annotated[
        int | None, typer.Option(help="Print what every rank sees at this step instead.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan an epoch as training will, and say what comes of it.

    Tokens are counted on first use with a tokenizer and a template.

    Samples with unusable texts are left out, as with on_error="skip".

    So are overlong ones; make_loader refuses them if not told otherwise.
    """
    if world_size < 1:
        raise PlanError(f"--world-size {world_size}: at least one rank is needed")
    mixture = mixture_in(shards, validation=validation)
    if epochs is not None and mixture is None:
        raise PlanError(
            f"--epochs {epochs}: it counts passes of a mixture's datasets, and {shards} is one "
            "dataset; leave it out, or give --epoch for another one"
        )
    asked = flags.values["overlong"] is not None
    if flags.values["tokenizer"] is not None and not asked:
        flags = Flags(flags.declared, {**flags.values, "overlong": "drop"})
    if mixture is not None:
        asked = asked and not refuses_overlong(mixture)
    loader = datapipe.make_loader(
        shards if mixture is None else dropping_overlong(mixture),
        **flags.keywords(mixture),
        epochs=1 if epochs is None else epochs,
        on_error="skip",
        num_workers=0,
        rank=0,
        world_size=world_size,
    )
    loader.set_epoch(epoch)
    if step is None:
        _summarise(loader, shards, as_json=as_json, asked=asked)
        return
    view = loader.plan.step(step)
    # Keys and sources of foreign shards may hold anything.
    print(json.dumps(view.to_dict()) if as_json else shown_lines(str(view)))


def _summarise(loader: Loader, shards: str, *, as_json: bool, asked: bool) -> None:
    from datapipe.loader.plan_report import report_plan

    report = report_plan(loader)
    if as_json:
        print(json.dumps(report.to_dict()))
        return
    ranks = counted(report.world_size, "rank")
    rules = [part.rule for part in loader.components().schedule.origin.parts]
    known = {rule.spec.image_tokens for rule in rules if rule is not None}
    rows = _rows(report, known.pop() if len(known) == 1 else None, asked=asked)
    print_table(f"Plan of {shards}, epoch {report.epoch}, {ranks}", rows)
    if report.mixture is not None:
        _print_mixture(report.mixture)
    _print_histogram(report.summary.histogram)


def _print_mixture(mixture: MixturePlan) -> None:
    run = "" if mixture.epochs == 1 else f"; passes over {counted(mixture.epochs, 'epoch')}"
    print(f"{counted(len(mixture.datasets), 'dataset')}{run}")
    for line in aligned(datasets_table(mixture), left=(0, -1)):
        print(f"  {line}")
    if lines := phase_lines(mixture.phases):
        print("shares of the samples over the run")
        for line in lines:
            print(f"  {line}")


def _rows(report: PlanReport, image_tokens: object, *, asked: bool) -> dict[str, str]:
    summary = report.summary
    rows = {"steps": f"{summary.steps:,}"}
    units = {"sample": "samples", "batch": "batches", "pack": "packs"}[summary.unit]
    if summary.unit != "sample":
        rows[units] = (
            f"{summary.units:,} of {summary.samples_per_unit:,.1f} samples, at most "
            f"{summary.most_samples:,}"
        )
    rows["samples"] = f"{summary.samples:,} of {report.dataset_samples:,}"
    if report.mixture is not None:
        total = report.mixture.total
        rows["samples"] = (
            f"{summary.samples:,}, drawn from {total.samples:,} of {total.dataset_samples:,}"
        )
    if summary.repeats:
        share = summary.repeats / (summary.units + summary.repeats) * summary.steps
        rows["repeats"] = f"{summary.repeats:,} {units}, {share:.0%} of the last step"
    rows |= _token_rows(report, image_tokens, asked=asked)
    for reason, count in report.to_dict()["left_out"].items():
        if count:
            rows[f"left out, {REASONS[reason]}"] = f"{count:,}"
    rows["time to plan"] = f"{report.seconds:.2f} s, first step after {report.first_seconds:.2f} s"
    return rows


def _token_rows(report: PlanReport, image_tokens: object, *, asked: bool) -> dict[str, str]:
    summary = report.summary
    if summary.tokens is None or summary.fill is None or summary.padding is None:
        return {}
    size = f"{image_tokens:,}" if isinstance(image_tokens, int) else image_tokens
    of_size = "" if size is None else f" of {size} tokens"
    rows = {
        "tokens": f"{summary.tokens:,}",
        "label tokens": f"{summary.labels:,}",
        "images": f"{summary.images:,}{of_size}",
        "fill": f"{summary.fill:.2%}",
        "padding": f"{summary.padding:.2%}",
    }
    if report.world_size > 1:
        rows["imbalance of text"] = f"{summary.text_imbalance:.2%}"
        rows["imbalance of images"] = f"{summary.image_imbalance:.2%}"
    lengths = report.lengths
    if lengths.limit is not None or lengths.overlong:
        limit = "their limits" if lengths.limit is None else f"{lengths.limit:,} tokens"
        rows["overlong"] = f"{lengths.overlong:,} over {limit}"
        if lengths.overlong and not asked:
            rows["overlong"] += "; training refuses them without overlong="
    if lengths.cut_images or lengths.cut_labels:
        images, labels = lengths.cut_images, lengths.cut_labels
        rows["cut away"] = f"{counted(images, 'image')}, {counted(labels, 'label token')}"
    return rows


def _print_histogram(histogram: tuple[LengthBin, ...]) -> None:
    if not histogram:
        return
    print("tokens of a sample")
    width = len(f"{histogram[-1].stop - 1:,}")
    signs = bars([length_bin.samples for length_bin in histogram])
    empty = 0
    for length_bin, row in zip(histogram, signs, strict=True):
        empty = 0 if length_bin.samples else empty + 1
        if empty > 1:  # one row stands for a gap
            continue
        if empty:
            print(f"  {'...':>{width}}")
            continue
        last = f"{length_bin.stop - 1:,}"
        print(f"  {length_bin.start:>{width},} to {last:>{width}}  {row}  {length_bin.samples:,}")
