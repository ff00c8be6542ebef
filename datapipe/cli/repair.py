"""`datapipe repair`: what a damaged dataset still holds, as a whole one."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

import datapipe
from datapipe.cli.fields import flags_of
from datapipe.cli.loading import Flags, with_flags
from datapipe.cli.options import AsJson
from datapipe.cli.output import print_table, shown
from datapipe.curate.repair import RepairReport
from datapipe.curate.spec import CopySpec
from datapipe.report.table import counted

_SHOWN = 10


@with_flags(*flags_of(CopySpec, "shard_size", "renumber", "sidecars", "space_check", "lock_check"))
def repair(
    dataset: Annotated[
        str, typer.Argument(help="Folder or URL of shards, or tars of someone else.")
    ],
    flags: Flags,
    out: Annotated[
        str | None, typer.Argument(help="New folder, for the samples that are whole.")
    ] = None,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="Make lost indexes again in DATASET; change no shard."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy the whole samples of a damaged dataset to OUT, or make its lost indexes again.

    Samples that are gone are listed, with the inputs to pack again. Exits with 1 if there are any.
    """
    report = datapipe.repair_dataset(
        dataset, out, in_place=in_place, output=CopySpec(**flags.given_to(CopySpec))
    )
    if as_json:
        print(json.dumps({**asdict(report), "again": report.again}))
    else:
        _print(report, in_place=in_place)
    if report.lost:
        raise typer.Exit(1)


def _print(report: RepairReport, *, in_place: bool) -> None:
    for finding in report.lost[:_SHOWN]:
        print(shown(f"gone: {finding}"))
    if len(report.lost) > _SHOWN:
        print(f"... and {len(report.lost) - _SHOWN:,} more; --json lists all")
    rows = {"samples": f"{report.samples:,}"}
    if report.without_checksum:
        rows["no checksum"] = (
            f"{report.without_checksum:,} of them: images and texts can be read, but nothing says "
            "which bytes they had"
        )
    if in_place:
        rows["made again"] = ", ".join(report.remade) or "nothing; all is whole"
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
