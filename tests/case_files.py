"""Cases of tests that are files: what is given, and what is expected of it."""

from pathlib import Path
from typing import Any

import yaml

TESTS = Path(__file__).parent


def table(name: str) -> Any:
    """Content of `tests/ROOM/NAME.yaml`; `name` is ROOM/NAME."""
    return yaml.safe_load((TESTS / f"{name}.yaml").read_text("utf-8"))


def cases(name: str) -> list[list[str]]:
    r"""Parts of the lines of `tests/ROOM/cases/NAME.txt` that hold `=>`; `name` is ROOM/NAME.

    A part that is empty is written as `none`, a line break as `\n`. Other lines are headings.
    """
    room, _, file = name.partition("/")
    lines = (TESTS / room / "cases" / f"{file}.txt").read_text("utf-8").splitlines()
    found = [line.replace(r"\n", "\n").split(" => ") for line in lines if " => " in line]
    assert len(found) == sum("=>" in line for line in lines), name
    return [["" if part == "none" else part for part in parts] for parts in found]
