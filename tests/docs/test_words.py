"""The words of the code: docstrings that say what they describe, and names with one meaning."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("datapipe", "examples", "benchmarks", "tools")
RIDDLES = ("What", "Whether", "Where", "How", "Which", "Who", "Those", "That", "Of ")


def definitions(part: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield the modules, classes and functions of a part of the project, with their files."""
    for path in sorted((ROOT / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            yield path.relative_to(ROOT).as_posix(), node


def test_no_docstring_begins_with_a_question() -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    asked = [
        f"{file}: {text.splitlines()[0]}"
        for part in PARTS
        for file, node in definitions(part)
        if isinstance(node, documented)
        and (text := ast.get_docstring(node) or "").startswith(RIDDLES)
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
