"""The `datapipe` command: parse, call, print."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import datapipe
from datapipe.decode.image import MAX_PIXELS
from datapipe.errors import DatapipeError
from datapipe.index.scan import index_home
from datapipe.index.sidecars import parse_sidecars, write_sidecars
from datapipe.pack.readers import all_readers
from datapipe.pack.report import PackReport
from datapipe.progress import is_watched, readable_size

app = typer.Typer(
    name="datapipe",
    help="The input pipeline for vision-language training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_JSON_KEYS = (
    *("samples", "images", "rejected", "shards", "bytes", "saved_bytes", "seconds", "output"),
)


def main() -> None:
    """Entry point of the command."""
    for stream in (sys.stdout, sys.stderr):  # file names need not be text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    app()


def _version(wanted: bool) -> None:
    if wanted:
        print(f"datapipe {datapipe.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    pass


@app.command()
def pack(
    raw: Annotated[Path, typer.Argument(help="File or folder of raw image-text data.")],
    out: Annotated[Path, typer.Argument(help="Folder for the shards; new, or of the same pack.")],
    format: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(sorted(all_readers()))}; recognised by itself otherwise."),
    ] = None,
    image_root: Annotated[
        Path | None, typer.Option(help="Where relative image paths of records start.")
    ] = None,
    image_column: Annotated[
        str | None, typer.Option(help="Column of a table that holds images or their paths.")
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="Column of a table that holds the text.")
    ] = None,
    include: Annotated[
        str | None,
        typer.Option(help="Only files of records that match, such as 'data/train-*'."),
    ] = None,
    key_from: Annotated[
        str | None, typer.Option(help="Field of the records that keys begin with.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that read and check; default one per CPU.")
    ] = None,
    shard_size: Annotated[
        str, typer.Option(help="Bytes (512MB, 1GiB) or samples (10000) a shard.")
    ] = "512MB",
    check: Annotated[
        str,
        typer.Option(
            help="decode: refuse images that training could not decode. header: read headers alone."
        ),
    ] = "decode",
    max_pixels: Annotated[
        int, typer.Option(help="Reject images with more pixels than these.")
    ] = MAX_PIXELS,
    max_side: Annotated[
        int | None, typer.Option(help="Make images smaller until their longest side fits.")
    ] = None,
    quality: Annotated[
        int | None, typer.Option(help="Quality of images that are encoded anew, 1 to 100.")
    ] = None,
    image_format: Annotated[
        str, typer.Option(help="jpg or webp: encode all others anew. keep: leave the format.")
    ] = "keep",
    max_rejects: Annotated[
        str,
        typer.Option(help="Stop past this: a number, or a share (5% or 0.05)."),
    ] = "5%",
    limit: Annotated[int | None, typer.Option(help="Take no more inputs than these.")] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Add to the finished dataset in OUT as new shards.")
    ] = False,
    sidecars: Annotated[
        str, typer.Option(help="Index files for others too: dali,wids,energon.")
    ] = "",
    space_check: Annotated[
        bool, typer.Option(help="Refuse to start where the disk has not enough room.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and check everything, write nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end.")
    ] = False,
) -> None:
    """Pack raw image-text data into WebDataset shards with an index.

    Run the same command again to finish a pack that was interrupted.
    """
    go_on = "nothing is lost: the same command goes on where this one stopped"
    with _user_errors("nothing was written" if dry_run else go_on):
        report = datapipe.pack_dataset(
            raw,
            out,
            format=format,
            image_root=image_root,
            image_column=image_column,
            text_column=text_column,
            include=include,
            key_from=key_from,
            workers=workers,
            shard_size=shard_size,
            check=check,  # type: ignore[arg-type]  # checked by pack
            max_pixels=max_pixels,
            max_side=max_side,
            quality=quality,
            image_format=image_format,  # type: ignore[arg-type]  # checked by pack
            max_rejects=max_rejects,
            limit=limit,
            append=append,
            sidecars=sidecars,
            space_check=space_check,
            dry_run=dry_run,
        )
    if as_json:
        fields = asdict(report)
        print(json.dumps({key: fields[key] for key in _JSON_KEYS}))
    else:
        _print_report(report)


@app.command()
def index(
    shards: Annotated[Path, typer.Argument(help="Folder of .tar files that someone else wrote.")],
    force: Annotated[
        bool, typer.Option("--force", help="Index again where there is an index already.")
    ] = False,
    sidecars: Annotated[
        str, typer.Option(help="Index files for others too: dali,wids,energon.")
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end.")
    ] = False,
) -> None:
    """Index WebDataset tars without repacking them, so that make_loader opens them."""
    with _user_errors("run the same command again"):
        if not shards.is_dir():
            what = "is a file" if shards.exists() else "no such folder"
            raise DatapipeError(f"{shards}: {what}; give the folder that holds the .tar files")
        kinds = parse_sidecars(sidecars)
        manifest = datapipe.index_shards(shards, force=force)
        write_sidecars(shards, manifest, kinds, home=index_home(shards))
    if as_json:
        result = {
            "samples": manifest.samples,
            "images": manifest.images,
            "shards": len(manifest.shards),
            "bytes": manifest.bytes,
            "output": str(shards),
        }
        print(json.dumps(result))
    else:
        _print_table(
            f"Indexed {shards}",
            {
                "samples": f"{manifest.samples:,}",
                "images": f"{manifest.images:,}",
                "shards": f"{len(manifest.shards):,}",
                "size": readable_size(manifest.bytes),
            },
        )


@contextmanager
def _user_errors(after_interrupt: str) -> Iterator[None]:
    """Messages instead of tracebacks for what a user did or can mend."""
    try:
        yield
    except DatapipeError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"Error: {place}{error.strerror or error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print(f"\nInterrupted; {after_interrupt}.", file=sys.stderr)
        raise typer.Exit(130) from None


def _print_report(report: PackReport) -> None:
    if report.finished_before:
        title = f"{report.output} is packed already, nothing to do"
    elif report.dry_run:
        title = f"Would pack into {report.output}"
    else:
        title = f"Packed {report.output}"
    rows = {
        "samples": f"{report.samples:,}",
        "images": f"{report.images:,}",
        "rejected": f"{report.rejected:,}",
        "shards": f"{report.shards:,}",
        "size": readable_size(report.bytes),
        **_saved(report),
        "time": f"{report.seconds:.1f} s",
    }
    if report.inputs:
        rows["rate"] = f"{report.inputs / max(report.seconds, 1e-9):,.0f} inputs/s"
    _print_table(title, rows)
    for reject in report.examples[:5]:
        file = f"{reject.file}: " if reject.file else ""
        print(_shown(f"rejected {reject.source}: {file}{reject.reason}"))
    if report.rejected and not report.dry_run:
        print(f"all rejects: {Path(report.output) / 'rejects.jsonl'}")


def _saved(report: PackReport) -> dict[str, str]:
    """What shrinking has saved, where it was asked for."""
    if not report.saved_bytes:
        return {}
    share = report.saved_bytes / (report.bytes + report.saved_bytes)
    return {"saved": f"{readable_size(report.saved_bytes)} ({share:.0%})"}


def _print_table(title: str, rows: dict[str, str]) -> None:
    if is_watched(sys.stdout):
        from rich import print as rich_print
        from rich.table import Table

        table = Table(title=title, show_header=False, title_justify="left")
        table.add_column(style="dim")
        table.add_column(justify="right")
        for name, value in rows.items():
            table.add_row(name, value)
        rich_print(table)
        return
    print(title)
    for name, value in rows.items():
        print(f"  {name:<9} {value}")


def _shown(text: str) -> str:
    """Without characters that would steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
