"""The `datapipe` command: its subcommands, the entry point, and the end after an error.

A subcommand is imported when it runs: `datapipe --help` does not wait for its libraries.
"""

from __future__ import annotations

import ast
import importlib
import io
import logging
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import datapipe
from datapipe.cli.output import ending_where_output_is_lost
from datapipe.errors import DatapipeError

COMMANDS = {
    "pack": "pack",
    "convert": "pack",
    "inspect": "inspect",
    "preview": "preview",
    "verify": "verify",
    "repair": "curate",
    "index": "index",
    "select": "curate",
    "split": "curate",
    "merge": "curate",
    "dedup": "curate",
    "diff": "curate",
    "plan": "plan",
    "profile": "measure",
    "tune-workers": "measure",
    "check-model": "check_model",
}
"""Module of each command; its function has the command's name."""

_AGAIN = "run the same command again; what it had finished is kept"


class Commands(TyperGroup):
    """The commands of `COMMANDS`. Listing them reads their docstrings and imports nothing.

    They end with one line, not a traceback, for errors that a user can mend.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given | {"commands": dict.fromkeys(COMMANDS)})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the name and help of a command; `resolve_command` returns one that runs."""
        return TyperCommand(cmd_name, help=_help(cmd_name)) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed and imported(str(listed.name)), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DatapipeError as error:
            print(f"Error: {error}", file=sys.stderr)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            print(f"Error: {place}{error.strerror or error}", file=sys.stderr)
        except KeyboardInterrupt:
            print(f"\nInterrupted; {_AGAIN}.", file=sys.stderr)
            raise typer.Exit(130) from None
        raise typer.Exit(1)


app = typer.Typer(
    name="datapipe",
    cls=Commands,
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


@cache
def imported(name: str) -> Any:
    from datapipe.cli.options import with_storage_options

    module = importlib.import_module(f"datapipe.cli.{COMMANDS[name]}")
    command = getattr(module, name.replace("-", "_"))
    if name != "check-model":  # it reads local folders only
        command = with_storage_options(command)
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command(name)(command)
    return typer.main.get_command(single)


def _help(name: str) -> str | None:
    source = Path(__file__).with_name(f"{COMMANDS[name]}.py").read_bytes()
    return next(
        ast.get_docstring(statement)
        for statement in ast.parse(source).body
        if isinstance(statement, ast.FunctionDef) and statement.name == name.replace("-", "_")
    )
