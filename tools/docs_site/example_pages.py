"""A page for each training loop and notebook of examples/, with its source."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from tools.docs_site.links import rewrite


def example_pages(folder: Path) -> dict[str, str]:
    """Return the pages by their path in the site, such as "examples/train_captioner.md"."""
    paths = sorted(
        [*folder.glob("*.py"), *folder.glob("trainers/*.py"), *folder.glob("*.ipynb")],
    )
    return {
        f"examples/{path.relative_to(folder).with_suffix('.md')}": (
            _notebook_page(path) if path.suffix == ".ipynb" else _page(path)
        )
        for path in paths
    }


def _page(path: Path) -> str:
    source = path.read_text("utf-8")
    summary = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    return f"# {path.name}\n\n{summary}\n\n```python\n{source}```\n"


def _notebook_page(path: Path) -> str:
    content: Any = json.loads(path.read_text("utf-8"))
    cells = ((cell["cell_type"], "".join(cell["source"])) for cell in content["cells"])
    page = "\n\n".join(
        f"```python\n{text}\n```" if kind == "code" else text for kind, text in cells
    )
    return rewrite(page, f"examples/{path.name}") + "\n"
