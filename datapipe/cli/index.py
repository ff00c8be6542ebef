"""`datapipe index`: an index for tars of someone else, and token counts for any dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import datapipe
from datapipe.cli.output import print_table, user_errors
from datapipe.cli.text import (
    Template,
    Tokenizer,
    count,
    print_failures,
    text_encoder,
    token_rows,
)
from datapipe.errors import DatapipeError
from datapipe.index.manifest import MANIFEST, Manifest, read_manifest
from datapipe.index.scan import index_home
from datapipe.index.sidecars import parse_sidecars, write_sidecars
from datapipe.progress import readable_size


def index(
    shards: Annotated[Path, typer.Argument(help="Folder of .tar shards.")],
    force: Annotated[
        bool, typer.Option("--force", help="Index again where there is an index already.")
    ] = False,
    tokenizer: Tokenizer = None,
    template: Template = None,
    sidecars: Annotated[
        str, typer.Option(help="Index files for others too: dali,wids,energon.")
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end.")
    ] = False,
) -> None:
    """Index WebDataset tars without repacking them, so that make_loader opens them.

    With --tokenizer, also count the tokens of every text, of shards that datapipe packed too.
    """
    with user_errors("run the same command again; shards that are done are kept"):
        if not shards.is_dir():
            what = "is a file" if shards.exists() else "no such folder"
            raise DatapipeError(f"{shards}: {what}; give the folder that holds the .tar files")
        kinds = parse_sidecars(sidecars)
        encoder = text_encoder(tokenizer, template)
        packed = _packed_here(shards) if encoder and not force else None
        manifest = packed or datapipe.index_shards(shards, force=force)
        write_sidecars(shards, manifest, kinds, home=shards if packed else index_home(shards))
        counted = count(shards, encoder) if encoder else None
    if as_json:
        result: dict[str, Any] = {
            "samples": manifest.samples,
            "images": manifest.images,
            "shards": len(manifest.shards),
            "bytes": manifest.bytes,
            "output": str(shards),
        }
        print(json.dumps(result | ({"tokens": counted[1].to_dict()} if counted else {})))
        return
    rows = {
        "samples": f"{manifest.samples:,}",
        "images": f"{manifest.images:,}",
        "shards": f"{len(manifest.shards):,}",
        "size": readable_size(manifest.bytes),
    }
    title = f"Counted the tokens of {shards}" if packed else f"Indexed {shards}"
    print_table(title, rows | (token_rows(counted[1]) if counted else {}))
    if counted:
        print_failures(counted[0])


def _packed_here(shards: Path) -> Manifest | None:
    """The manifest of a dataset that datapipe packed; None where the shards are someone else's."""
    if not (shards / MANIFEST).exists():
        return None
    manifest = read_manifest(shards)
    return None if manifest.foreign else manifest
