"""`datapipe index`: an index for tars of someone else, and token counts for any dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import datapipe
from datapipe.cli.loading import Flags, with_flags
from datapipe.cli.options import SIDECARS, AsJson, Template, Tokenizer
from datapipe.cli.output import print_table
from datapipe.cli.text import count, print_failures, text_encoder, token_rows
from datapipe.errors import DatapipeError
from datapipe.index.manifest import MANIFEST, Manifest, read_manifest
from datapipe.index.sidecars import parse_sidecars, write_sidecars
from datapipe.index.tar.listing import index_home, names_shards, refuse_urls, tars_at
from datapipe.progress import readable_size
from datapipe.remote.folder import is_remote


@with_flags(SIDECARS)
def index(
    shards: Annotated[
        str,
        typer.Argument(
            help="Folder of .tar shards, or a list in quotes: 'data/train-{000..099}.tar'."
        ),
    ],
    flags: Flags,
    force: Annotated[
        bool, typer.Option("--force", help="Index again where there is an index already.")
    ] = False,
    ignore: Annotated[
        str, typer.Option(help="Leave out members, such as '*.mp4' or '*.seg.png,*.depth.png'.")
    ] = "",
    tokenizer: Tokenizer = None,
    template: Template = None,
    as_json: AsJson = False,
) -> None:
    """Index WebDataset tars without repacking them, so that make_loader opens them.

    With --tokenizer, also count the tokens of every text, and with --sidecars write index files for
    other readers; both also of shards that datapipe packed.
    """
    _refuse_others(shards)
    kinds = parse_sidecars(flags.values["sidecars"] or "")
    encoder = text_encoder(tokenizer, template)
    packed = _packed_here(Path(shards)) if (encoder or kinds) and not force else None
    if packed and packed.arrays is not None and kinds:
        raise DatapipeError(f"--sidecars are of tars, and {shards} holds arrays; leave them out")
    if packed:
        manifest = packed
        write_sidecars(Path(shards), manifest, kinds)
    else:
        manifest = datapipe.index_shards(shards, force=force, ignore=ignore)
        tars = tars_at(shards)
        write_sidecars(tars.folder, manifest, kinds, home=index_home(tars))
    counted = count(shards, encoder) if encoder else None
    result: dict[str, Any] = {
        "samples": manifest.samples,
        "images": manifest.images,
        "shards": len(manifest.shards),
        "bytes": manifest.bytes,
        "output": shards,
    }
    if as_json:
        print(json.dumps(result | ({"tokens": counted[1].to_dict()} if counted else {})))
        return
    rows = {name: f"{result[name]:,}" for name in ("samples", "images", "shards")}
    rows["size"] = readable_size(manifest.bytes)
    title = f"Indexed {shards}"
    if packed and counted:
        title = f"Counted the tokens of {shards}"
    elif packed:
        title = f"Wrote the sidecars of {shards} ({', '.join(kinds)})"
    print_table(title, rows | (token_rows(counted[1]) if counted else {}))
    if counted:
        print_failures(counted[0])


def _refuse_others(shards: str) -> None:
    path = Path(shards)
    if names_shards(shards) or path.is_dir() or (path.suffix == ".tar" and path.is_file()):
        return
    if is_remote(shards):
        refuse_urls([shards])
    what = "is a file" if path.exists() else "no such folder"
    raise DatapipeError(f"{shards}: {what}; give the folder that holds the .tar files")


def _packed_here(shards: Path) -> Manifest | None:
    """Return the manifest of a dataset that datapipe packed; None for shards of another tool."""
    if not (shards / MANIFEST).exists():
        return None
    manifest = read_manifest(shards)
    return None if manifest.foreign else manifest
