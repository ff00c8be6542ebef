"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from datapipe.cli.fields import help_of
from datapipe.text.spec import TextSpec

Shards = Annotated[
    str,
    typer.Argument(
        help="Folder or URL that `datapipe pack` wrote to, folder of tars, or file of a mixture "
        "(.yaml or .json)."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")]
Report = Annotated[
    Path | None, typer.Option(help="Write a report with figures to this .html file.")
]
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
Tokenizer = Annotated[
    str | None,
    typer.Option(help="Count tokens with this tokenizer.json, or the folder of a tokenizer."),
]
Template = Annotated[str | None, typer.Option(help=help_of(TextSpec, "template"))]
MaxRejects = Annotated[str, typer.Option(help="Stop past this: a number, or a share (5% or 0.05).")]
LockCheck = Annotated[
    bool, typer.Option(help="Refuse to start where OUT cannot be locked against a second run.")
]
SpaceCheck = Annotated[
    bool, typer.Option(help="Refuse to start where the disk has not enough room.")
]
Sidecars = Annotated[str, typer.Option(help="Index files for others too: dali,wids,energon.")]
