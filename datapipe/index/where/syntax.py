"""Parser and checks of a `where`: its text becomes a syntax tree that is walked and never run.

The checks know the parts that an expression may have, and their kinds. Errors show the position.
"""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from datapipe.errors import PlanError

Kind = Literal["number", "string", "condition"]

NUMBERS = ("width", "height", "pixels", "aspect", "images", "text_bytes", "shard")
STRINGS = ("key", "source")

_NEED_TEXT = ("text_tokens", "label_tokens", "tokens", "placeholders")
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_LARGEST = 2**63 - 1
_LONGEST = 300  # characters of either end of what is said
_SHOWN = 60  # characters of a long expression on either side of the position
_REMEDIES = {
    ast.BitAnd: "& is not known here; write `and`",
    ast.BitOr: "| is not known here; write `or`",
    ast.Invert: "~ is not known here; write `not`",
    ast.Pow: "** is not known here; write the product out",
    ast.Subscript: "columns cannot be indexed; compare them as they are",
    ast.Attribute: "columns have no attributes; only .startswith(...) and .endswith(...) are known",
    ast.Call: "only .startswith(...) and .endswith(...) can be called, on a column of strings",
    ast.IfExp: "`if` is not known here; join conditions with and, or, not",
    ast.Tuple: "a list may only stand after `in`",
    ast.List: "a list may only stand after `in`",
    ast.Set: "a list may only stand after `in`",
}
_MOST_CHARACTERS = 100_000
_DEEPEST = 100  # well within what Python's recursion limit leaves to a caller


@dataclass(frozen=True, kw_only=True)
class Where:
    """A parsed expression; equal and with the same `str` however it was spaced or quoted.

    Attributes:
        expression: in one normal form, which stands for it in names and states.
        columns: names of the columns it reads.
        written: as the user wrote it; positions in messages are positions in it.
        tree: what it means.
    """

    expression: str
    columns: frozenset[str]
    written: str = field(compare=False, repr=False)
    tree: ast.expr = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.expression


def parse_where(expression: Any) -> Where:
    """Parse an expression such as `width >= 336 and text_tokens < 4096`, in Python's syntax.

    There are comparisons (chained too), `and`, `or`, `not`, `+ - * / // %`, parentheses, numbers,
    strings, `in (...)`, `"part" in source`, `source.startswith("coco/")`, `.endswith` and
    `is None`. Whether all columns are there shows when it is evaluated.

    Raises:
        PlanError: it is not such an expression, or mixes numbers and strings.
    """
    if not isinstance(expression, str):
        raise PlanError(f"where is an expression in a string, and {expression!r} is none")
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
        node = ast.Constant(None, lineno=number, col_offset=column)
        remedy = "write it as in Python: and, or, not, ==, and strings in quotes"
        raise fault(written, node, f"{error.msg}; {remedy}") from None
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


def fault(written: str, node: ast.expr, problem: str) -> PlanError:
    """Return the error of a problem at `node` of the expression `written`."""
    # The parser was given one line before the text, and counts columns in bytes.
    lines = written.split("\n")
    above = min(max(node.lineno - 2, 0), len(lines) - 1)
    before = lines[above].encode(errors="replace")[: node.col_offset].decode(errors="replace")
    position = sum(len(line) + 1 for line in lines[:above]) + len(before)
    start, stop = max(position - _SHOWN, 0), position + _SHOWN
    shown = "…" * (start > 0) + written[start:stop] + "…" * (stop < len(written))
    if len(problem) > 2 * _LONGEST:  # it quotes a name of that length
        problem = f"{problem[:_LONGEST]}…{problem[-_LONGEST:]}"
    return PlanError(f"where={shown!r}, character {position + 1}: {problem}")


def check_tree(written: str, tree: ast.expr, *, extra: Collection[str] | None) -> None:
    """Refuse a `tree` that is no condition that can be evaluated.

    `extra` names the columns that there are beside our own; where None, any name may be one.

    Raises:
        PlanError: it is not, showing the position in `written`.
    """
    _Checker(written, extra).condition(tree)


def literal(node: ast.expr) -> int | float | str | None:
    """Return the number or the string that `node` is; None where it is something else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = literal(node.operand)
        if isinstance(value, int | float):
            return -value if isinstance(node.op, ast.USub) else value
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float, str):
        return node.value  # type: ignore[return-value]  # mypy does not follow `type(...) in`
    return None


class _Checker:
    def __init__(self, written: str, extra: Collection[str] | None) -> None:
        self._written = written
        self._extra = extra

    def condition(self, node: ast.expr) -> None:
        kind = self.kind(node)
        if kind != "condition":
            raise self._fault(node, f"{self._named(node, kind)} is no condition; compare it")

    def kind(self, node: ast.expr) -> Kind | None:
        """Return the kind of `node`; None for a column that may yet be there."""
        match node:
            case ast.BoolOp(values=values):
                for value in values:
                    self.condition(value)
                return "condition"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.condition(operand)
                return "condition"
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                return self._number(operand)
            case ast.BinOp(op=op) if isinstance(op, _ARITHMETIC):
                self._number(node.left)
                return self._number(node.right)
            case ast.Compare():
                sides = [node.left, *node.comparators]
                for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
                    self._pair(left, operator, right)
                return "condition"
            case ast.Call(func=ast.Attribute(attr="startswith" | "endswith")):
                return self._affix(node)
            case ast.Name(id=name):
                return self._column(node, name)
            case ast.Constant():
                return self._constant(node)
        raise self._unknown(node)

    def _pair(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> None:
        match operator:
            case ast.Is() | ast.IsNot():
                self._missing(left, right)
            case ast.In() | ast.NotIn():
                self._within(left, right)
            case _:
                for side in (left, right):
                    if isinstance(side, ast.Constant) and side.value is None:
                        raise self._fault(side, "nothing equals None; write `is None`")
                kinds = self._operand(left), self._operand(right)
                self._alike(left, right, *kinds)
                if isinstance(literal(left), str) and isinstance(literal(right), str):
                    raise self._fault(left, "two strings are compared; one must be a column")

    def _missing(self, left: ast.expr, right: ast.expr) -> None:
        if not (isinstance(right, ast.Constant) and right.value is None):
            raise self._fault(right, "`is` is only for None; write == or !=")
        if self._operand(left) == "string":
            raise self._fault(left, f"{ast.unparse(left)} is never None; every sample has one")

    def _within(self, left: ast.expr, right: ast.expr) -> None:
        kind = self._operand(left)
        if isinstance(right, ast.Tuple | ast.List | ast.Set):
            if not right.elts:
                raise self._fault(right, "nothing is in an empty list; name what may be there")
            for element in right.elts:
                if literal(element) is None:
                    raise self._fault(element, "a list holds numbers or strings, nothing else")
                self._alike(left, element, kind, self.kind(element))
            if literal(left) is not None:
                raise self._fault(left, "a constant is looked for in a list; name a column")
            return
        if isinstance(right, ast.Name) and self.kind(right) != "number":
            if not isinstance(literal(left), str):
                raise self._fault(left, f'write a string before `in {right.id}`: "part"')
            return
        raise self._fault(
            right, '`in` needs a list, such as ("a", "b"), or a column of strings behind it'
        )

    def _affix(self, node: ast.Call) -> Kind:
        assert isinstance(node.func, ast.Attribute)
        method, column = node.func.attr, node.func.value
        if not isinstance(column, ast.Name):
            raise self._fault(column, f".{method}(...) needs a column of strings before it")
        kind = self.kind(column)
        if kind == "number":
            raise self._fault(column, f"{column.id} is a number and has no .{method}(...)")
        affix = node.args[0] if len(node.args) == 1 and not node.keywords else None
        choices = affix.elts if isinstance(affix, ast.Tuple) else [affix]
        for choice in choices or [None]:
            if choice is None or not isinstance(literal(choice), str):
                raise self._fault(
                    choice or node, f'.{method} takes a string or several: .{method}(("a", "b"))'
                )
            self.kind(choice)
        return "condition"

    def _number(self, node: ast.expr) -> Kind:
        kind = self.kind(node)
        if kind not in ("number", None):
            raise self._fault(
                node, f"{self._named(node, kind)} is no number; only numbers can be reckoned with"
            )
        return "number"

    def _operand(self, node: ast.expr) -> Kind | None:
        kind = self.kind(node)
        if kind == "condition":
            raise self._fault(
                node, f"{ast.unparse(node)} is a condition; join conditions with and, or, not"
            )
        return kind

    def _alike(self, left: ast.expr, right: ast.expr, a: Kind | None, b: Kind | None) -> None:
        if a and b and a != b:
            raise self._fault(
                left,
                f"{self._named(left, a)} is compared with {self._named(right, b)}; "
                "compare numbers with numbers, and strings (in quotes) with strings",
            )

    def _constant(self, node: ast.Constant) -> Kind:
        value = node.value
        if isinstance(value, bool) or value is None:
            raise self._fault(node, f"{value} is not known here; write what is to be compared")
        if isinstance(value, int | float):
            if abs(value) > (_LARGEST if isinstance(value, int) else sys.float_info.max):
                raise self._fault(node, "the number is too large; write one of 64 bits")
            return "number"
        if isinstance(value, str):
            if any("\ud800" <= character <= "\udfff" for character in value):
                raise self._fault(node, f"{value!r} is half a character; write the whole one")
            return "string"
        raise self._unknown(node)

    def _column(self, node: ast.expr, name: str) -> Kind | None:
        if name in STRINGS:
            return "string"
        if name in NUMBERS:
            return "number"
        if self._extra is None:
            return None
        if name in self._extra:
            return "number"
        if name in _NEED_TEXT:
            raise self._fault(
                node,
                f"no column {name!r} without a tokenizer; {name} needs "
                "text=TextSpec(tokenizer=..., template=...)",
            )
        there = sorted({*NUMBERS, *STRINGS, *self._extra})
        there.sort(key=lambda other: -difflib.SequenceMatcher(None, name, other).ratio())
        raise self._fault(node, f"no column {name!r}; there are {', '.join(there)}")

    def _named(self, node: ast.expr, kind: Kind | None) -> str:
        return f"{ast.unparse(node)} (a {kind or 'column'})"

    def _unknown(self, node: ast.expr) -> Exception:
        part = getattr(node, "op", node)
        other = f"{type(part).__name__} is not known here; compare columns with numbers or strings"
        return self._fault(node, _REMEDIES.get(type(part), other))

    def _fault(self, node: ast.expr, problem: str) -> Exception:
        return fault(self._written, node, problem)
