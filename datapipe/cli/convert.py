"""`datapipe convert`: shards to arrays of images that are decoded once."""

from __future__ import annotations

from typing import Annotated

import typer

import datapipe
from datapipe.cli.fields import own_flag
from datapipe.cli.loading import Flags, with_flags
from datapipe.cli.options import (
    CHECK_FLAGS,
    ENGINE_FLAGS,
    MAX_REJECTS,
    ArrayImage,
    AsJson,
    ImageSize,
    Template,
    Tokenizer,
)
from datapipe.cli.output import print_written
from datapipe.cli.text import text_spec
from datapipe.cli.values import parse_array_image
from datapipe.workers.engine import EngineSpec


@with_flags(
    own_flag("workers", "Threads that decode; default one per CPU.", int),
    *ENGINE_FLAGS,
    MAX_REJECTS,
    *CHECK_FLAGS,
)
def convert(
    shards: Annotated[str, typer.Argument(help="Folder or URL of packed shards.")],
    arrays: Annotated[
        str,
        typer.Argument(help="Folder for the arrays; new, or from an earlier run of this command."),
    ],
    flags: Flags,
    image_size: ImageSize = None,
    image: ArrayImage = None,
    tokenizer: Tokenizer = None,
    template: Template = None,
    as_json: AsJson = False,
) -> None:
    """Decode every image of a packed dataset once, into arrays that loaders map.

    Run the same command again to finish a conversion that was interrupted.
    """
    images, text = parse_array_image(image_size, image), text_spec(tokenizer, template=template)
    options = flags.given_to(None) | flags.given_to(EngineSpec)
    report = datapipe.convert_dataset(shards, arrays, image=images, text=text, **options)
    print_written({"": report}, "Converted into", as_json=as_json)
