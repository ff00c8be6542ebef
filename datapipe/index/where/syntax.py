"""From the text of a `where` to a syntax tree that is safe to walk. Python never runs any of it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from datapipe.errors import PlanError
from datapipe.index.where.check import check_tree
from datapipe.index.where.fault import fault

_MOST_CHARACTERS = 100_000
_DEEPEST = 100  # well within what Python's recursion limit leaves to a caller


@dataclass(frozen=True, kw_only=True)
class Where:
    """A parsed expression; equal and with the same `str` however it was spaced or quoted.

    Attributes:
        expression: in one normal form, which stands for it in names and states.
        columns: names of the columns it reads.
        written: as the user wrote it; places in messages are places in it.
        tree: what it means.
    """

    expression: str
    columns: frozenset[str]
    written: str = field(compare=False, repr=False)
    tree: ast.expr = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.expression


def parse_where(expression: str) -> Where:
    """Parse an expression such as `width >= 336 and text_tokens < 4096`, in Python's syntax.

    There are comparisons (chained too), `and`, `or`, `not`, `+ - * / // %`, parentheses, numbers,
    strings, `in (...)`, `"part" in source`, `source.startswith("coco/")`, `.endswith` and
    `is None`. Whether all columns are there shows when it is evaluated.

    Raises:
        PlanError: it is not such an expression, or mixes numbers and strings.
    """
    given: object = expression  # whatever its annotation says
    if not isinstance(given, str):
        raise PlanError(f"where is an expression in a string, and {given!r} is none")
    written = expression.replace("\r\n", "\n").replace("\r", "\n").strip()
    if not written:
        raise PlanError("where is empty; leave it out to take all samples")
    if len(written) > _MOST_CHARACTERS:
        raise PlanError(
            f"where has {len(written):,} characters, more than {_MOST_CHARACTERS:,}; compare with "
            "fewer strings, by what they start with say, or pack the samples apart"
        )
    tree = _parse(written)
    if _is_deep(tree):
        raise fault(written, tree, f"nested deeper than {_DEEPEST}; write it in fewer levels")
    columns = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    check_tree(written, tree, extra=None)
    return Where(expression=ast.unparse(tree), columns=columns, written=written, tree=tree)


def _parse(written: str) -> ast.expr:
    # Python reads on over the end of a line only within parentheses. The text begins on the second
    # line in both cases, which is what `fault` counts on.
    source = f"(\n{written}\n)" if "\n" in written else f"\\\n{written}"
    try:
        return ast.parse(source, mode="eval").body
    except SyntaxError as error:
        lines = source.split("\n")
        number = min(error.lineno or 2, len(lines))
        # What is missing at the end has no offset.
        before = lines[number - 1][: error.offset - 1] if error.offset else lines[number - 1]
        column = len(before.encode(errors="replace"))
        place = ast.Constant(None, lineno=number, col_offset=column)
        remedy = "write it as in Python: and, or, not, ==, and strings in quotes"
        raise fault(written, place, f"{error.msg}; {remedy}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise PlanError(
            f"where cannot be parsed ({type(error).__name__}: {error}); write it in fewer levels "
            "and without control characters"
        ) from None


def _is_deep(tree: ast.expr) -> bool:
    level: list[ast.AST] = [tree]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True
