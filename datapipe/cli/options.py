"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from datapipe.cli.fields import flag_of, help_of, own_flag
from datapipe.text.spec import TextSpec
from datapipe.workers.engine import EngineSpec

_SHARDS = typer.Argument(
    help="Folder or URL that `datapipe pack` wrote to, folder of tars, or file of a mixture "
    "(.yaml or .json)."
)
Shards = Annotated[str, _SHARDS]
OptionalShards = Annotated[str | None, _SHARDS]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")]
Report = Annotated[
    Path | None, typer.Option(help="Write a report with figures to this .html file.")
]
ImageSize = Annotated[
    str | None, typer.Option(help="Size of the images in arrays: 336, or 480x640 (height x width).")
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
MAX_REJECTS = own_flag("max_rejects", "Stop past this: a number or share (5%, 0.05).", str, "5%")
CHECK_FLAGS = (
    own_flag("space_check", "Refuse to start if the disk is too full.", bool, True),
    own_flag("lock_check", "Refuse to start where OUT cannot be locked by one run.", bool, True),
)
FIELDS = own_flag(
    "fields", "Fields of the samples' JSON that where= may name: 'score,meta.license'."
)
SIDECARS = own_flag("sidecars", "Index files for others too: dali,wids,energon.")
ENGINE_FLAGS = (
    flag_of(EngineSpec, "engine", help="local: this machine. ray: tasks of a Ray cluster."),
    flag_of(EngineSpec, "address"),
)
