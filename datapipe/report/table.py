"""Tables of text, numbers as people read them, and figures as JSON can hold them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from datapipe.progress import readable_size

Table = tuple[list[str], list[list[str]]]
"""Header and rows of cells."""


def aligned(table: Table, *, left: Collection[int] = (0,)) -> list[str]:
    """Format a table as lines, with its cells in columns.

    Columns in `left` are aligned to the left; negative ones count from the last.
    """
    header, rows = table
    to_left = {at % len(header) for at in left}
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at in to_left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, *rows)
    ]


def ratio(part: float, whole: float) -> float:
    """Divide, for a whole that may be 0."""
    return part / max(whole, 1e-9)


def rate_text(value: float) -> str:
    """Format a rate: `1,424` or `5.8`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ms_text(seconds: float) -> str:
    """Format seconds as milliseconds, without the unit."""
    value = 1e3 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def size_text(value: float | None) -> str:
    """Format bytes; "-" if there are none."""
    return readable_size(round(value)) if value and value >= 1 else "-"


def time_text(seconds: float) -> str:
    """Format seconds with the unit that suits them: `12.3 ms`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            value = seconds / size
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return "0 s" if seconds <= 0 else f"{seconds * 1e9:.0f} ns"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun: `1 worker`, `2 workers`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def plain(value: Any) -> Any:
    """Convert dataclasses, named tuples, mappings and sequences to dictionaries and lists."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value
