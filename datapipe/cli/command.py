"""The `datapipe` command: its subcommands and the entry point."""

from __future__ import annotations

import io
import logging
import sys
from typing import Annotated

import typer

import datapipe
from datapipe.cli.lazy_commands import LazyCommands
from datapipe.cli.output import ending_where_output_is_lost

app = typer.Typer(
    name="datapipe",
    cls=LazyCommands,
    help="The input pipeline for vision-language training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
