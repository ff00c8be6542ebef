"""Text of a dataclass by the fields that differ from their defaults."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def short_repr(value: Any) -> str:
    """Return a dataclass as the call that makes it.

    Fields with their defaults are left out, so a new option changes the text of no old value.
    """
    given = (
        f"{item.name}={getattr(value, item.name)!r}"
        for item in fields(value)
        if getattr(value, item.name) != item.default
    )
    return f"{type(value).__name__}({', '.join(given)})"
