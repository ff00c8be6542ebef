"""The `datapipe` command: parse, call, print. A module for each subcommand."""

from datapipe.cli.command import app, main

__all__ = ["app", "main"]
