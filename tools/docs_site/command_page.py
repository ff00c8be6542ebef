"""The page of the `datapipe` command, from the help of its subcommands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from datapipe.cli.command import COMMANDS, imported

_HEAD = """# The datapipe command

`datapipe COMMAND --help` prints the same in a terminal.
"""


def command_page() -> str:
    """Return the page in Markdown: a section for each subcommand."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for name in COMMANDS:
        command = imported(name)
        arguments = [entry for entry in command.params if _is_argument(entry)]
        options = [entry for entry in command.params if not _is_argument(entry)]
        words = " ".join(_argument_name(entry) for entry in arguments)
        yield f"## datapipe {name}\n\n    datapipe {name} {words} [OPTIONS]\n"
        yield command.help + "\n"
        for entry in arguments:
            yield _definition(f"`{_argument_name(entry)}`", entry)
        yield "**Options**\n"
        for entry in options:
            yield _definition(", ".join(f"`{spelt}`" for spelt in _spellings(entry)), entry)


def _is_argument(entry: Any) -> bool:
    return not entry.opts[0].startswith("-")


def _argument_name(entry: Any) -> str:
    name = str(entry.opts[0]).upper()
    return name if entry.required else f"[{name}]"


def _spellings(entry: Any) -> Iterator[str]:
    for spelt in (*entry.opts, *entry.secondary_opts):
        yield spelt if entry.is_flag else f"{spelt} {str(entry.name).upper()}"


def _definition(term: str, entry: Any) -> str:
    default = entry.default
    shown = "" if default in (None, False, ()) else f" Default: `{_value(default)}`."
    return f"{term}\n:   {_escaped(entry.help or '')}{shown}\n"


def _value(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def _escaped(text: str) -> str:
    """Return a help text as Markdown; `code` in it stays code."""
    parts = text.split("`")
    return "`".join(
        part if number % 2 else part.replace("*", r"\*").replace("<", "&lt;").replace("[", r"\[")
        for number, part in enumerate(parts)
    )
