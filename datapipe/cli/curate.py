"""`datapipe select`, `split`, `merge` and `dedup`: datasets made from datasets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import datapipe
from datapipe.cli.fields import flags_of, own_flag
from datapipe.cli.loading import Flags, with_flags
from datapipe.cli.options import AsJson
from datapipe.cli.output import print_rejects, print_table, report_rows
from datapipe.cli.values import parse_share
from datapipe.curate.spec import CopySpec
from datapipe.errors import PlanError

if TYPE_CHECKING:
    from datapipe.curate.spec import CopyReport

_OUTPUT = flags_of(
    CopySpec, "shard_size", "renumber", "view", "sidecars", "space_check", "lock_check"
)
_JSON_KEYS = (
    *("samples", "images", "rejected", "shards", "bytes", "seconds", "output", "finished_before"),
)
_Dataset = Annotated[
    str,
    typer.Argument(help="Folder or URL that `datapipe pack` wrote to, or folder of tars."),
]
_Out = Annotated[str, typer.Argument(help="Folder for the new dataset, outside of the old one.")]


@with_flags(
    own_flag("where", "Samples that take part, such as 'width >= 336'."),
    own_flag("keys", "Text file with the keys of the samples, one in each line."),
    own_flag("number", "So many samples, drawn at random from the others.", int),
    own_flag("seed", "Seed of the draw.", int, 0),
    *_OUTPUT,
)
def select(dataset: _Dataset, out: _Out, flags: Flags, as_json: AsJson = False) -> None:
    """Copy some samples of a dataset into new shards, without decoding them.

    Run the same command again to finish a copy that was interrupted.
    """
    report = datapipe.select_samples(dataset, out, output=_output(flags), **flags.given_to(None))
    _print({"": report}, as_json=as_json)


@with_flags(
    own_flag("val", "Share of the part `val`, such as 1%; the rest is `train`."),
    own_flag("parts", "Names and shares of the parts: train=0.98,val=0.02."),
    own_flag("salt", "Text that makes another division.", str, ""),
    *_OUTPUT,
)
def split(dataset: _Dataset, out: _Out, flags: Flags, as_json: AsJson = False) -> None:
    """Divide a dataset by a hash of its keys, into a dataset for each part in OUT.

    Run the same command again to finish a division that was interrupted.
    """
    given = flags.given_to(None)
    if "val" in given:
        given["val"] = parse_share(given["val"], "--val")
    if "parts" in given:
        pairs = [part.partition("=") for part in given["parts"].split(",")]
        given["parts"] = {
            name.strip(): parse_share(share, f"--parts: {name}") for name, _, share in pairs
        }
        if len(given["parts"]) < len(pairs):
            raise PlanError("--parts names a part twice; give each one share")
    _print(datapipe.split_dataset(dataset, out, output=_output(flags), **given), as_json=as_json)


@with_flags(
    own_flag("prefix", "Texts that the keys of each dataset begin with: coco-,chats-."), *_OUTPUT
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
    _print({"": report}, as_json=as_json)


@with_flags(
    own_flag("near", "Drop images that look alike too: up to so many of 128 bits differ.", int),
    own_flag("text", "Texts must be equal too.", bool, False),
    *_OUTPUT,
)
def dedup(dataset: _Dataset, out: _Out, flags: Flags, as_json: AsJson = False) -> None:
    """Copy a dataset without the samples whose images an earlier sample has.

    Run the same command again to finish a copy that was interrupted.
    """
    report = datapipe.dedup_dataset(dataset, out, output=_output(flags), **flags.given_to(None))
    _print({"": report}, as_json=as_json)


def _output(flags: Flags) -> CopySpec:
    return CopySpec(**flags.given_to(CopySpec))


def _print(reports: Mapping[str, CopyReport], *, as_json: bool) -> None:
    """Print the reports of new datasets by name; that of a single one has none."""
    if as_json:
        fields = {
            name: {key: asdict(report)[key] for key in _JSON_KEYS}
            for name, report in reports.items()
        }
        print(json.dumps(fields.get("", fields)))
        return
    for report in reports.values():
        title, done = f"Wrote {report.output}", report.samples
        if report.finished_before:
            title, done = f"{report.output} is finished already, nothing to do", 0
        print_table(title, report_rows(report, done, "samples"))
        print_rejects(report)
