"""The words of the code: docstrings that say what they describe, and names with one meaning."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("datapipe", "examples", "benchmarks", "tools")
RIDDLES = ("What", "Whether", "Where", "How", "Which", "Who", "Those", "That", "Of ")


@cache
def definitions(part: str) -> list[tuple[str, ast.AST]]:
    """Return the modules, classes and functions of a part of the project, with their files."""
    return [
        (path.relative_to(ROOT).as_posix(), node)
        for path in sorted((ROOT / part).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_no_docstring_begins_with_a_question() -> None:
    asked = [
        f"{file}: {text.splitlines()[0]}"
        for part in PARTS
        for file, node in definitions(part)
        if (text := ast.get_docstring(node) or "").startswith(RIDDLES)
    ]
    assert asked == []


def test_a_class_name_means_one_thing() -> None:
    names = Counter(
        node.name.lstrip("_")
        for _, node in definitions("datapipe")
        if isinstance(node, ast.ClassDef)
    )
    assert len(names) > 300
    assert [name for name, count in names.items() if count > 1] == []
