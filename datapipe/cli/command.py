"""The `datapipe` command: its subcommands and the entry point."""

from __future__ import annotations

import io
import logging
import sys
from typing import Annotated

import typer

import datapipe
from datapipe.cli.check_model import check_model
from datapipe.cli.convert import convert
from datapipe.cli.curate import dedup, diff, merge, repair, select, split
from datapipe.cli.index import index
from datapipe.cli.inspect import inspect
from datapipe.cli.options import with_storage_options
from datapipe.cli.output import Commands, ending_where_output_is_lost
from datapipe.cli.pack import pack
from datapipe.cli.plan import plan
from datapipe.cli.preview import preview
from datapipe.cli.profile import profile
from datapipe.cli.tune import tune_workers
from datapipe.cli.verify import verify

app = typer.Typer(
    name="datapipe",
    cls=Commands,
    help="The input pipeline for vision-language training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _command in (
    *(pack, convert, inspect, preview, verify, repair, index, select, split, merge, dedup),
    *(diff, plan, profile, tune_workers),
):
    app.command()(with_storage_options(_command))
app.command()(check_model)


def run() -> None:
    for stream in (sys.stdout, sys.stderr):  # file names need not be text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    with ending_where_output_is_lost():
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
