"""A page for each training loop of examples/, with its source."""

from __future__ import annotations

import ast
from pathlib import Path


def example_pages(folder: Path) -> dict[str, str]:
    """Return the pages by their path in the site, such as "examples/train_captioner.md"."""
    paths = sorted([*folder.glob("*.py"), *folder.glob("trainers/*.py")])
    return {
        f"examples/{path.relative_to(folder).with_suffix('.md')}": _page(path) for path in paths
    }


def _page(path: Path) -> str:
    source = path.read_text("utf-8")
    summary = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    return f"# {path.name}\n\n{summary}\n\n```python\n{source}```\n"
