"""`datapipe convert`: shards to arrays of images that are decoded once."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import datapipe
from datapipe.cli.image import parse_image
from datapipe.cli.output import print_table, shown, user_errors
from datapipe.cli.text import Template, Tokenizer, text_spec
from datapipe.errors import PlanError
from datapipe.progress import readable_size

if TYPE_CHECKING:
    from datapipe.convert.report import ConvertReport
    from datapipe.decode.spec import ImageSpec

ImageSize = Annotated[
    str | None,
    typer.Option(help="Size of the images in arrays: 336, or 480x640 (height x width)."),
]
ArrayImage = Annotated[
    str | None,
    typer.Option(
        "--image",
        help="Images in arrays, more exactly: 'size=336,resize=pad,normalize=clip', "
        "'clip', or 'none'.",
    ),
]

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
    max_rejects: Annotated[
        str, typer.Option(help="Stop past this: a number, or a share (5% or 0.05).")
    ] = "5%",
    space_check: Annotated[
        bool, typer.Option(help="Refuse to start where the disk has not enough room.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end.")
    ] = False,
) -> None:
    """Decode every image of a packed dataset once, into arrays that loaders map.

    Run the same command again to finish a conversion that was interrupted.
    """
    with user_errors("nothing is lost: the same command goes on where this one stopped"):
        report = datapipe.convert_dataset(
            shards,
            arrays,
            image=array_image(image_size, image),
            text=text_spec(tokenizer, template=template),
            workers=workers,
            max_rejects=max_rejects,
            space_check=space_check,
        )
    print_converted(report, as_json=as_json)


def array_image(size: str | None, image: str | None) -> ImageSpec | None:
    """The `ImageSpec` that `--image-size` and `--image` say.

    Raises:
        PlanError: both are given, or one is impossible.
    """
    if size is not None and image is not None:
        raise PlanError("--image-size and --image both say how large images are; give one")
    if size is not None and not all(side.isdecimal() for side in size.split("x")):
        raise PlanError(f"--image-size {size!r}: give a side such as 336, or 480x640")
    return parse_image(size if image is None else image)


def print_converted(report: ConvertReport, *, as_json: bool) -> None:
    """What a conversion did."""
    if as_json:
        fields = asdict(report)
        print(json.dumps({key: fields[key] for key in _JSON_KEYS}))
        return
    if report.finished_before:
        title = f"{report.output} is converted already, nothing to do"
    else:
        title = f"Converted into {report.output}"
    rows = {
        "samples": f"{report.samples:,}",
        "images": f"{report.images:,}",
        "rejected": f"{report.rejected:,}",
        "size": readable_size(report.bytes),
        "time": f"{report.seconds:.1f} s",
    }
    if not report.finished_before:
        rows["rate"] = f"{report.samples / max(report.seconds, 1e-9):,.0f} samples/s"
    print_table(title, rows)
    for reject in report.examples[:5]:
        file = f"{reject.file}: " if reject.file else ""
        print(shown(f"rejected {reject.source}: {file}{reject.reason}"))
    if report.rejected:
        print(f"all rejects: {report.output.rstrip('/')}/rejects.jsonl")
