"""`datapipe convert`: shards to arrays of images that are decoded once."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import datapipe
from datapipe.cli.options import (
    ArrayImage,
    AsJson,
    ImageSize,
    LockCheck,
    MaxRejects,
    SpaceCheck,
    Template,
    Tokenizer,
)
from datapipe.cli.output import print_rejects, print_table
from datapipe.cli.text import text_spec
from datapipe.cli.values import parse_array_image
from datapipe.progress import readable_size

if TYPE_CHECKING:
    from datapipe.convert.report import ConvertReport

_JSON_KEYS = ("samples", "images", "rejected", "bytes", "seconds", "output", "finished_before")


def convert(
    shards: Annotated[str, typer.Argument(help="Folder or URL of packed shards.")],
    arrays: Annotated[
        str, typer.Argument(help="Folder for the arrays; new, or of the same conversion.")
    ],
    image_size: ImageSize = None,
    image: ArrayImage = None,
    tokenizer: Tokenizer = None,
    template: Template = None,
    workers: Annotated[
        int | None, typer.Option(help="Threads that decode; default one per CPU.")
    ] = None,
    max_rejects: MaxRejects = "5%",
    space_check: SpaceCheck = True,
    lock_check: LockCheck = True,
    as_json: AsJson = False,
) -> None:
    """Decode every image of a packed dataset once, into arrays that loaders map.

    Run the same command again to finish a conversion that was interrupted.
    """
    report = datapipe.convert_dataset(
        shards,
        arrays,
        image=parse_array_image(image_size, image),
        text=text_spec(tokenizer, template=template),
        workers=workers,
        max_rejects=max_rejects,
        space_check=space_check,
        lock_check=lock_check,
    )
    print_converted(report, as_json=as_json)


def print_converted(report: ConvertReport, *, as_json: bool) -> None:
    """Print the report of a conversion."""
    if as_json:
        fields = asdict(report)
        print(json.dumps({key: fields[key] for key in _JSON_KEYS}))
        return
    title = f"Converted into {report.output}"
    rows = {
        "samples": f"{report.samples:,}",
        "images": f"{report.images:,}",
        "rejected": f"{report.rejected:,}",
        "size": readable_size(report.bytes),
        "time": f"{report.seconds:.1f} s",
    }
    if report.finished_before:
        title = f"{report.output} is converted already, nothing to do"
    else:
        rows["rate"] = f"{report.samples / max(report.seconds, 1e-9):,.0f} samples/s"
    print_table(title, rows)
    print_rejects(report)
