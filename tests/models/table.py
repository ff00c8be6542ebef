"""Table of known models in docs/models.md: `python -m tests.models.table` writes it."""

import re
from pathlib import Path

from .checkpoints import CASES
from .tiny import TINY

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
HEAD = "| model_type | processor | packs | options of |\n|---|---|---|---|\n"
_PACKS = {tiny.case.model_type: tiny.packs for tiny in TINY.values()}
_PACKS["qwen3_5_moe"] = _PACKS["qwen3_5"]


def table() -> str:
    """Return the table, a line for each checkpoint that is compared."""
    rows: dict[tuple[str, str], list[str]] = {}
    for case in CASES.values():
        named = case.source if "/" in case.source else "Qwen/Qwen3-VL-8B-Instruct"
        rows.setdefault((case.model_type, case.processor.__name__), []).append(named)
    return HEAD + "".join(
        f"| `{kind}` | {processor} | {_PACKS.get(kind, 'yes')} | {', '.join(sources)} |\n"
        for (kind, processor), sources in sorted(rows.items())
    )


def written() -> str:
    """Return the table that the page has."""
    found = re.search(re.escape(HEAD) + r"(?:\|.*\n)+", PAGE.read_text())
    return found[0] if found else ""


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().replace(written(), table()))
