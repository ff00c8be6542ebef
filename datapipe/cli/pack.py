"""`datapipe pack` and `convert`: raw data to shards, and to arrays of decoded images."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import datapipe
from datapipe.cli import options as shared
from datapipe.cli.fields import flags_of, joined, own_flag
from datapipe.cli.loading import Flags, with_flags
from datapipe.cli.output import print_rejects, print_table, print_written, report_rows, shown
from datapipe.cli.text import count, print_failures, text_encoder, text_spec, token_rows
from datapipe.cli.values import parse_array_image, parse_json_object
from datapipe.errors import PlanError
from datapipe.pack.pack_dataset import pack_dataset
from datapipe.pack.readers import all_readers
from datapipe.pack.report import PackReport
from datapipe.pack.url_upload import local_path
from datapipe.report.table import counted
from datapipe.workers.engine import EngineSpec

_JSON_KEYS = (
    *("samples", "images", "videos", "frames", "rejected", "lost", "shards", "bytes"),
    *("saved_bytes", "seconds", "output"),
)
_OF_SHARDS = (
    *("append", "sidecars", "fields", "dry_run", "staging", "engine", "address", "runtime_env"),
    *("video_frames", "video_size", "video_timeout"),
)
_FLAGS = (
    own_flag("format", f"{', '.join(sorted(all_readers()))}; recognised by default."),
    own_flag("image_column", "Column of a table that holds images or their paths."),
    own_flag("text_column", "Column of a table that holds the text."),
    own_flag("include", "Only files of records that match, such as 'data/train-*'."),
    own_flag(
        "ignore",
        "Leave out files and members of tars: '*.mp4' or '*.seg.png,*_mask.png'.",
        list[str],
        parse=joined,
    ),
    own_flag(
        "captions", "Several captions of an image: all (a sample for each; default), first, join."
    ),
    own_flag(
        "video_frames",
        "Frames of videos that become images: 'fps=2,max=64'; videos are rejected otherwise.",
    ),
    own_flag(
        "map",
        "Meaning of fields: 'user=question,assistant=answer,image=img_path'; targets are "
        "image, video, user, assistant, system, tool, messages and caption.",
        list[str],
        parse=joined,
    ),
    own_flag("workers", "Processes that read and check; default one per CPU.", int),
    *shared.ENGINE_FLAGS,
    own_flag("runtime_env", "Ray's, as a JSON object or a file with one.", parse=parse_json_object),
    own_flag("quality", "Quality of images that are encoded again, 1 to 100.", int),
    *flags_of(pack_dataset, "image_root", "key_from", "join"),
    *flags_of(pack_dataset, "shard_size", "check", "max_pixels", "pages", "max_side"),
    *flags_of(pack_dataset, "image_format", "video_size", "video_timeout"),
    *flags_of(pack_dataset, "limit", "append", "dry_run", "staging"),
    shared.MAX_REJECTS,
    shared.SIDECARS,
    shared.FIELDS,
    *shared.CHECK_FLAGS,
)
"""Options that are arguments of `pack_dataset`."""


@with_flags(*_FLAGS)
def pack(
    raw: Annotated[
        str,
        typer.Argument(
            help="File or folder of raw image-text data, or its URL, or tars as "
            "'data/train-{000..099}.tar'."
        ),
    ],
    flags: Flags,
    out: Annotated[
        str | None,
        typer.Argument(
            help="Folder or URL (s3://bucket/shards) for the shards; new, or of the same pack. "
            "--dry-run needs none.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str, typer.Option(help="shards, or memmap: arrays of images that are decoded once.")
    ] = "shards",
    image_size: shared.ImageSize = None,
    image: shared.ArrayImage = None,
    tokenizer: shared.Tokenizer = None,
    template: shared.Template = None,
    as_json: shared.AsJson = False,
) -> None:
    """Pack raw image-text data into WebDataset shards with an index, or into arrays.

    Run the same command again to finish a pack that was interrupted.
    """
    engine = flags.given_to(EngineSpec)
    options = flags.given_to(None) | engine
    dry_run = "dry_run" in options
    if to not in ("shards", "memmap"):
        raise PlanError(f"--to {to!r} is neither 'shards' nor 'memmap'")
    if to == "memmap":
        for name in _OF_SHARDS:
            if name in options:
                option = name.replace("_", "-")
                raise PlanError(f"--{option} applies to shards, and --to memmap makes arrays")
        if out is None:
            raise PlanError("OUT is missing: give a folder for the arrays")
        images = parse_array_image(image_size, image)
        text = text_spec(tokenizer, template=template)
        arrays = datapipe.pack_arrays(raw, out, image=images, text=text, **options)
        print_written({"": arrays}, "Converted into", as_json=as_json)
        return
    if image_size is not None or image is not None:
        raise PlanError("--image-size and --image apply to arrays; add --to memmap")
    encoder = text_encoder(tokenizer, template)  # before hours of packing
    if encoder and out is not None and local_path(out) is None:
        raise PlanError(
            f"--tokenizer cannot count behind the URL {out}; leave it out: the first make_loader "
            "with a tokenizer counts"
        )
    report = pack_dataset(raw, out, **options)
    tokens = None
    if encoder and not dry_run:
        # Nodes that need a runtime_env may lack the tokenizer's packages too.
        place = {} if "runtime_env" in options else engine
        tokens = count(Path(report.output), encoder, options.get("workers"), **place)
    if as_json:
        of_texts = {"tokens": asdict(tokens[1])} if tokens else {}
        taught = {"teaching": report.teaching.to_dict(), "notes": report.notes}
        print(json.dumps({key: getattr(report, key) for key in _JSON_KEYS} | taught | of_texts))
    else:
        _print_report(report, token_rows(tokens[1]) if tokens else {})
        if tokens:
            print_failures(tokens[0])
    if report.lost:
        print(
            f"Error: {counted(report.lost, 'input')} rejected because a node failed, not for the "
            "content; to pack them, repair the nodes and pack to a new folder",
            file=sys.stderr,
        )
        raise typer.Exit(1)


@with_flags(
    own_flag("workers", "Threads that decode; default one per CPU.", int),
    *shared.ENGINE_FLAGS,
    shared.MAX_REJECTS,
    *shared.CHECK_FLAGS,
)
def convert(
    shards: Annotated[str, typer.Argument(help="Folder or URL of packed shards.")],
    arrays: Annotated[
        str,
        typer.Argument(help="Folder for the arrays; new, or from an earlier run of this command."),
    ],
    flags: Flags,
    image_size: shared.ImageSize = None,
    image: shared.ArrayImage = None,
    tokenizer: shared.Tokenizer = None,
    template: shared.Template = None,
    as_json: shared.AsJson = False,
) -> None:
    """Decode every image of a packed dataset once, into arrays that loaders map.

    Run the same command again to finish a conversion that was interrupted.
    """
    images, text = parse_array_image(image_size, image), text_spec(tokenizer, template=template)
    options = flags.given_to(None, EngineSpec)
    report = datapipe.convert_dataset(shards, arrays, image=images, text=text, **options)
    print_written({"": report}, "Converted into", as_json=as_json)


def _print_report(report: PackReport, tokens: dict[str, str]) -> None:
    if report.finished_before:
        title = f"{report.output} is packed already, nothing to do"
    elif report.dry_run:
        title = f"Would pack into {report.output}" if report.output else "Would pack"
    else:
        title = f"Packed {report.output}"
    rows = report_rows(report, report.inputs, "inputs")
    if report.videos:
        rows["videos"] = f"{report.videos:,}, {report.frames:,} frames"
    if report.teaching.samples:
        rows |= report.teaching.rows()
        if report.captions_unused:
            rows["captions unused"] = f"{report.captions_unused:,}"
    print_table(title, rows | tokens)
    if report.shown:
        print("What training will see; * stands before what the model learns to write:")
        for sample in report.shown:
            for line in sample.lines():
                print(f"  {shown(line)}")
    for note in report.notes:
        print(shown(note))
    for warning in report.teaching.warnings():
        print(shown(f"WARNING: {warning}"), file=sys.stderr)
    print_rejects(report, written=not report.dry_run)
