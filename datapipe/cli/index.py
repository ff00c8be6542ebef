"""`datapipe index`: an index for tars of someone else; token counts and fields of any dataset."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import datapipe
from datapipe.cli.fields import joined
from datapipe.cli.loading import Flags, with_flags
from datapipe.cli.options import ENGINE_FLAGS, FIELDS, SIDECARS, AsJson, Template, Tokenizer
from datapipe.cli.output import print_table
from datapipe.cli.text import count, print_failures, text_encoder, token_rows
from datapipe.errors import DatapipeError
from datapipe.index.dataset import open_dataset
from datapipe.index.manifest import MANIFEST, Manifest, read_manifest
from datapipe.index.sidecars import parse_sidecars, present_sidecars, write_sidecars
from datapipe.index.tar.listing import (
    index_home,
    is_remote_folder,
    names_shards,
    refuse_urls,
    tars_at,
)
from datapipe.progress import readable_size
from datapipe.remote.folder import is_remote
from datapipe.store.record_fields import parse_fields
from datapipe.workers.engine import EngineSpec

logger = logging.getLogger(__name__)


@with_flags(SIDECARS, FIELDS, *ENGINE_FLAGS)
def index(
    shards: Annotated[
        str,
        typer.Argument(
            help="Folder of .tar shards, or a list in quotes: 'data/train-{000..099}.tar'."
        ),
    ],
    flags: Flags,
    force: Annotated[
        bool, typer.Option("--force", help="Rebuild an index that exists already.")
    ] = False,
    ignore: Annotated[
        list[str] | None,
        typer.Option(help="Leave out members, such as '*.mp4' or '*.seg.png,*.depth.png'."),
    ] = None,
    tokenizer: Tokenizer = None,
    template: Template = None,
    as_json: AsJson = False,
) -> None:
    """Index WebDataset tars without repacking them, so that make_loader opens them.

    With --tokenizer, also count the tokens of every text, on a Ray cluster too (--engine ray), with
    --fields index fields of the samples' JSON, and with --sidecars write index files for other
    readers; all three also of shards that datapipe packed, and --fields of a URL too.
    """
    kinds = parse_sidecars(flags.values["sidecars"] or "")
    fields = parse_fields(flags.values["fields"] or "")
    encoder = text_encoder(tokenizer, template)
    chosen = flags.given_to(EngineSpec)
    if chosen and encoder is None:
        raise DatapipeError("--engine and --address need --tokenizer; add it, or leave them out")
    if fields and is_remote_folder(shards) and not (kinds or force):
        packed: Manifest | None = open_dataset(shards).manifest
    else:
        _refuse_others(shards)
        wanted = encoder or kinds or fields
        packed = _packed_here(Path(shards)) if wanted and not force else None
    if packed:
        if packed.arrays is not None and kinds:
            raise DatapipeError(
                f"--sidecars apply to tars, and {shards} holds arrays; leave them out"
            )
        if ignore:
            raise DatapipeError(
                f"--ignore applies to tars from another writer, and datapipe packed {shards}; "
                "leave it out, or pack the raw data with it into a new folder"
            )
        manifest = packed
        write_sidecars(Path(shards), manifest, kinds)
    else:
        manifest = datapipe.index_shards(shards, force=force, ignore=joined(ignore) or ())
        tars = tars_at(shards)
        if force and (others := sorted({*present_sidecars(tars.folder)} - {*kinds})):
            told = "sidecars in %s may describe the tars as they were; --sidecars %s rewrites them"
            logger.warning(told, tars.folder, ",".join([*kinds, *others]))
        write_sidecars(tars.folder, manifest, kinds, home=index_home(tars))
    counted = count(shards, encoder, **chosen) if encoder else None
    found = datapipe.index_fields(shards, fields) if fields else {}
    result: dict[str, Any] = {
        "samples": manifest.samples,
        "images": manifest.images,
        "shards": len(manifest.shards),
        "bytes": manifest.bytes,
        "output": shards,
    }
    if as_json:
        result |= {"tokens": asdict(counted[1])} if counted else {}
        fields_found = {name: field._asdict() for name, field in found.items()}
        print(json.dumps(result | ({"fields": fields_found} if found else {})))
        return
    rows = {name: f"{result[name]:,}" for name in ("samples", "images", "shards")}
    rows["size"] = readable_size(manifest.bytes)
    title = f"Indexed {shards}"
    if packed and counted:
        title = f"Counted the tokens of {shards}"
    elif packed and kinds:
        title = f"Wrote the sidecars of {shards} ({', '.join(kinds)})"
    elif packed:
        title = f"Indexed fields of {shards}"
    of = f"of {manifest.samples:,} samples"
    rows |= {f"field {name}": f"{f.type}, in {f.present:,} {of}" for name, f in found.items()}
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
