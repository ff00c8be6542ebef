"""`datapipe check-model`: whether batches are what the model's own processor makes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

import datapipe
from datapipe.cli.options import AsJson
from datapipe.cli.output import shown_lines


def check_model(
    model: Annotated[str, typer.Argument(help="Folder of the model's checkpoint.")],
    shards: Annotated[str, typer.Argument(help="Folder of packed shards.")],
    samples: Annotated[int, typer.Option(help="Number of samples to compare.")] = 16,
    where: Annotated[
        str | None, typer.Option(help="Only samples for which this holds: 'images > 1'.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare a loader's tokens, pixels and labels with the model's processor in transformers.

    Exits with 1 if a sample differs.
    """
    found = datapipe.check_model(model, shards, samples=samples, where=where)
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        for told in found.differences:
            print(shown_lines(told))
        equal = found.samples - len(found.differences)
        print(
            f"{equal:,} of {found.samples:,} samples with {found.images:,} images are what the "
            f"processor makes; labels of {found.labels:,} were compared"
        )
    if not found.is_equal:
        raise typer.Exit(1)
