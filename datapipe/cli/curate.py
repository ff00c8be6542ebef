"""`datapipe select`, `split`, `merge`, `dedup`, `repair`, `diff`: datasets made from datasets."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import datapipe
from datapipe.cli.fields import flags_of, own_flag
from datapipe.cli.loading import Flags, with_flags
from datapipe.cli.options import ENGINE_FLAGS, AsJson
from datapipe.cli.output import print_table, print_written, shown
from datapipe.cli.values import parse_share, parse_shares
from datapipe.curate.spec import CopySpec
from datapipe.errors import DatapipeError, PlanError
from datapipe.report.table import counted
from datapipe.workers.engine import EngineSpec

if TYPE_CHECKING:
    from datapipe.curate.repair import RepairReport

_OUTPUT = flags_of(
    CopySpec, "shard_size", "renumber", "view", "sidecars", "space_check", "lock_check"
)
_SHOWN = 10  # findings and inputs of a repair
_Dataset = Annotated[
    str, typer.Argument(help="Folder or URL that `datapipe pack` wrote to, or folder of tars.")
]
_Out = Annotated[str, typer.Argument(help="Folder for the new dataset, outside the old one.")]


@with_flags(
    own_flag("where", "Only samples for which this holds: 'width >= 336'."),
    own_flag("keys", "Text file with the keys of the samples, one per line."),
    own_flag("number", "Number of samples, drawn at random.", int),
    own_flag("seed", "Seed of the draw.", int, 0),
    *_OUTPUT,
    *ENGINE_FLAGS,
)
def select(dataset: _Dataset, out: _Out, flags: Flags, as_json: AsJson = False) -> None:
    """Copy some samples of a dataset into new shards, without decoding them.

    Run the same command again to finish a copy that was interrupted.
    """
    report = datapipe.select_samples(dataset, out, output=_output(flags), **flags.given_to(None))
    print_written({"": report}, "Wrote", as_json=as_json)


@with_flags(
    own_flag("val", "Share of the part `val`, such as 1%; the rest is `train`.", parse=parse_share),
    own_flag("parts", "Names and shares of the parts: train=0.98,val=0.02.", parse=parse_shares),
    own_flag("salt", "Any text; another text gives another split.", str, ""),
    *_OUTPUT,
    *ENGINE_FLAGS,
)
def split(dataset: _Dataset, out: _Out, flags: Flags, as_json: AsJson = False) -> None:
    """Divide a dataset by a hash of its keys, into a dataset for each part in OUT.

    Run the same command again to finish a division that was interrupted.
    """
    reports = datapipe.split_dataset(dataset, out, output=_output(flags), **flags.given_to(None))
    print_written(reports, "Wrote", as_json=as_json)


@with_flags(
    own_flag("prefix", "Prefixes for the keys of each dataset: coco-,chats-."),
    *_OUTPUT,
    *ENGINE_FLAGS,
)
def merge(
    datasets: Annotated[
        list[str], typer.Argument(help="Datasets, then the folder for the new one.")
    ],
    flags: Flags,
    as_json: AsJson = False,
) -> None:
    """Copy the samples of several datasets into new shards, one dataset after the other.

    Run the same command again to finish a copy that was interrupted.
    """
    *sources, out = datasets
    if not sources:
        raise PlanError(f"{out}: give the datasets first, and then the folder for the new one")
    prefix = flags.given_to(None).get("prefix")
    prefixes = () if prefix is None else prefix.split(",")
    report = datapipe.merge_datasets(sources, out, prefixes=prefixes, output=_output(flags))
    print_written({"": report}, "Wrote", as_json=as_json)


@with_flags(
    own_flag(
        "near", "Also drop images that look alike: at most this many of 128 bits differ.", int
    ),
    own_flag("text", "Texts must be equal too.", bool, False),
    *_OUTPUT,
    *ENGINE_FLAGS,
)
def dedup(dataset: _Dataset, out: _Out, flags: Flags, as_json: AsJson = False) -> None:
    """Copy a dataset without the samples whose images an earlier sample has.

    Run the same command again to finish a copy that was interrupted.
    """
    report = datapipe.dedup_dataset(dataset, out, output=_output(flags), **flags.given_to(None))
    print_written({"": report}, "Wrote", as_json=as_json)


def _output(flags: Flags) -> CopySpec:
    return CopySpec(**flags.given_to(CopySpec, EngineSpec))


@with_flags(
    own_flag("in_place", "Rebuild lost indexes in DATASET; change no shard.", bool, False),
    own_flag("unchecked", "Also accept samples without checksums.", bool, False),
    *flags_of(CopySpec, "shard_size", "renumber", "sidecars", "space_check", "lock_check"),
    *ENGINE_FLAGS,
)
def repair(
    dataset: Annotated[
        str, typer.Argument(help="Folder or URL of shards, or tars from other writers.")
    ],
    flags: Flags,
    out: Annotated[str | None, typer.Argument(help="New folder for the intact samples.")] = None,
    as_json: AsJson = False,
) -> None:
    """Copy the whole samples of a damaged dataset to OUT, or rebuild its lost indexes.

    Samples that are gone are listed, with the inputs to pack again. Exits with 1 if there are any.
    """
    given = flags.given_to(None)
    report = datapipe.repair_dataset(dataset, out, output=_output(flags), **given)
    if as_json:
        print(json.dumps({**asdict(report), "again": report.again}))
    else:
        _print_repair(report, **given)
    if report.lost:
        raise typer.Exit(1)


def _print_repair(report: RepairReport, *, in_place: bool = False, unchecked: bool = False) -> None:
    for finding in report.lost[:_SHOWN]:
        print(shown(f"gone: {finding}"))
    if len(report.lost) > _SHOWN:
        print(f"... and {len(report.lost) - _SHOWN:,} more; --json lists all")
    rows = {"samples": f"{report.samples:,}"}
    if report.without_checksum:
        what = "of them" if unchecked else "more, left out; --unchecked takes them"
        rows["no checksum"] = (
            f"{report.without_checksum:,} {what}: images and texts can be read, but nothing says "
            "which bytes they had"
        )
    if in_place:
        rows["rebuilt"] = ", ".join(report.remade) or "nothing; samples and indexes are intact"
    else:
        rows["gone"] = f"{len({(f.file, f.key) for f in report.lost}):,}"
    rows["time"] = f"{report.seconds:.1f} s"
    print_table(f"Repaired {report.output}", rows)
    for note in report.notes:
        print(shown(f"note: {note}"))
    if again := report.again:
        shown_inputs = ", ".join(again[:_SHOWN]) + (", ..." if len(again) > _SHOWN else "")
        print(shown(f"pack again ({counted(len(again), 'input')}): {shown_inputs}"))
    if report.lost:
        print(f"all that is gone: {report.output.rstrip('/')}/rejects.jsonl")


def diff(a: _Dataset, b: _Dataset, as_json: AsJson = False) -> None:
    """Compare the samples of two datasets by keys and checksums. No shard is read.

    Exit status: 0 if they are the same, 1 if they differ, 2 after an error.
    """
    try:
        found = datapipe.diff_datasets(a, b)
    except DatapipeError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    if as_json:
        print(json.dumps({"is_same": found.is_same, **asdict(found)}))
    else:
        names = {name: name for name in ("equal", "changed", "renamed")}
        names |= {"only_a": "only in A", "only_b": "only in B"}
        rows = {"samples": f"A {found.samples[0]:,}, B {found.samples[1]:,}"}
        rows |= {said: f"{getattr(found, name):,}" for name, said in names.items()}
        print_table(f"The samples {'are the same' if found.is_same else 'differ'}", rows)
        for name, keys in found.examples.items():
            if keys:
                print(shown(f"{names[name]}: {', '.join(keys)}"))
    raise typer.Exit(0 if found.is_same else 1)
