"""Commands that are imported when they run: `datapipe --help` does not wait for their libraries."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from datapipe.cli.output import Commands

COMMANDS = {
    "pack": "pack",
    "convert": "convert",
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
    "profile": "profile",
    "tune-workers": "tune",
    "check-model": "check_model",
}
"""Module of each command; its function has the command's name."""


class LazyCommands(Commands):
    """The commands of `COMMANDS`. Listing them reads their docstrings and imports nothing."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given | {"commands": dict.fromkeys(COMMANDS)})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the name and help of a command; `resolve_command` returns one that runs."""
        return TyperCommand(cmd_name, help=_help(cmd_name)) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed and imported(str(listed.name)), rest


@cache
def imported(name: str) -> Any:
    """Import a command."""
    from datapipe.cli.options import with_storage_options

    module = importlib.import_module(f"datapipe.cli.{COMMANDS[name]}")
    command = getattr(module, _function(name))
    if name != "check-model":  # it reads local folders only
        command = with_storage_options(command)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(command)
    return typer.main.get_command(app)


def _function(name: str) -> str:
    return name.replace("-", "_")


def _help(name: str) -> str | None:
    return next(
        ast.get_docstring(statement)
        for statement in _source(COMMANDS[name]).body
        if isinstance(statement, ast.FunctionDef) and statement.name == _function(name)
    )


@cache
def _source(module: str) -> ast.Module:
    return ast.parse(Path(__file__).with_name(f"{module}.py").read_bytes())
