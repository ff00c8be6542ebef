"""Text of a `where`, parsed by Python's own parser into a tree that is evaluated and never run."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from datapipe.errors import PlanError

_SHOWN = 60  # characters of a long expression on either side of the position
_LONGEST = 60  # characters of a part in a message


@dataclass(frozen=True, kw_only=True)
class Where:
    """A parsed expression; equal and with the same `str` however it was spaced or quoted."""

    expression: str  # in one normal form, which stands for it in names and states
    columns: frozenset[str]  # names of the columns it reads
    # As the user wrote it; positions in messages are positions in it
    written: str = field(compare=False, repr=False)
    tree: ast.expr = field(compare=False, repr=False)  # its syntax tree

    def __str__(self) -> str:
        return self.expression


def parse_syntax(expression: Any) -> Where:
    """Parse an expression, without a check of what it asks for; PlanError if Python cannot."""
    if not isinstance(expression, str):
        raise PlanError(f"where is an expression in a string, and {expression!r} is none")
    written = expression.replace("\r\n", "\n").replace("\r", "\n").strip()
    if not written:
        raise PlanError("where is empty; leave it out to take all samples")
    # Python reads on over the end of a line only within parentheses. The text begins on the second
    # line in both cases, which is what `fault` counts on.
    source = f"(\n{written}\n)" if "\n" in written else f"\\\n{written}"
    try:
        tree = ast.parse(source, mode="eval").body
        normal = ast.unparse(tree)
    except SyntaxError as error:
        lines = source.split("\n")
        number = min(error.lineno or 2, len(lines))
        # What is missing at the end has no offset.
        before = lines[number - 1][: error.offset - 1] if error.offset else lines[number - 1]
        node = ast.Constant(None, lineno=number, col_offset=len(before.encode(errors="replace")))
        remedy = "write it as in Python: and, or, not, ==, and strings in quotes"
        raise fault(written, node, f"{error.msg}; {remedy}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise PlanError(
            f"where cannot be parsed ({type(error).__name__}: {error}); write it in fewer levels "
            "and without control characters"
        ) from None
    columns = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return Where(expression=normal, columns=columns, written=written, tree=tree)


def fault(written: str, node: ast.expr, problem: str) -> PlanError:
    """Return the error of a problem at `node` of the expression `written`."""
    # The parser was given one line before the text, and counts columns in bytes.
    lines = written.split("\n")
    above = min(max(node.lineno - 2, 0), len(lines) - 1)
    line = lines[above].encode(errors="replace")[: node.col_offset].decode(errors="replace")
    position = len("\n".join([*lines[:above], line]))
    start, stop = max(position - _SHOWN, 0), position + _SHOWN
    shown = "…" * (start > 0) + written[start:stop] + "…" * (stop < len(written))
    return PlanError(f"where={shown!r}, character {position + 1}: {problem}")


def clip(node: ast.expr) -> str:
    """Return a part of an expression for a message, cut if it is long."""
    text = ast.unparse(node)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
