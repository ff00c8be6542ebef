"""Vectorised evaluation of a `where` over ranges of samples, with the functions of Arrow.

The text is parsed by Python's own parser into a tree, which is never run.

Conditions have three values, as in SQL: a comparison with a number that a sample does not have, or
that divides by zero, is null, and only samples for which the condition is true take part.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.array_types import Bools
from datapipe.declared import shorten
from datapipe.errors import PlanError
from datapipe.index.columns import Columns
from datapipe.index.where import values
from datapipe.index.where.values import ExtraColumns, Span

_SHOWN = 60  # characters of a part in a message, and on either side of the position


@dataclass(frozen=True, kw_only=True)
class Where:
    """A parsed expression; equal and with the same `str` however it was spaced or quoted."""

    expression: str  # in one normal form, which stands for it in names and states
    fields: frozenset[str]  # names of the fields of the samples' records that it reads
    # As the user wrote it; positions in messages are positions in it
    written: str = field(compare=False, repr=False)
    tree: ast.expr = field(compare=False, repr=False)  # its syntax tree

    def __str__(self) -> str:
        return self.expression


def parse_where(expression: Any) -> Where:
    """Parse an expression such as `width >= 336 and text_tokens < 4096`, in Python's syntax.

    There are comparisons (chained too), `and`, `or`, `not`, `+ - * / // %`, parentheses, numbers,
    strings, `in (...)`, `"part" in source`, `source.startswith("coco/")`, `.endswith` and
    `is None`. A name that is no column is a field of the samples' records: `score`, `meta.score`,
    or `field("a b")`. Columns that need a tokenizer, and fields, are looked up when it is
    evaluated. Raises `PlanError` if it is not such an expression, or mixes numbers and strings.
    """
    if not isinstance(expression, str):
        raise PlanError(f"where must be an expression in a string, not {expression!r}")
    written = expression.replace("\r\n", "\n").replace("\r", "\n").strip()
    if not written:
        raise PlanError("where is empty; leave it out to take all samples")
    # Python reads on over the end of a line only within parentheses. The text begins on the second
    # line in both cases, which is what `fault` counts on.
    source = f"(\n{written}\n)" if "\n" in written else f"\\\n{written}"
    try:
        tree = ast.parse(source, mode="eval").body
        normal, fields = ast.unparse(tree), frozenset(_fields(tree))
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
    where = Where(expression=normal, fields=fields, written=written, tree=tree)
    try:
        with suppress(UnknownColumn):
            holds(where, tree, values.no_samples())
    except RecursionError:
        raise fault(written, tree, "nested too deeply; use fewer levels") from None
    return where


class UnknownColumn(PlanError):
    """A `where` names neither a column nor a field that is known."""


def _named(node: ast.expr) -> tuple[str, str | None] | None:
    """Return how a column is written that a node names, and the field that it is; else None."""
    match node:
        case ast.Call(func=ast.Name(id="field"), args=[ast.Constant(value=str(name))], keywords=[]):
            return values.written_field(name), name
        case ast.Name(id=name):
            return name, name if values.is_field(name) else None
        case ast.Attribute() if values.written_field(name := ast.unparse(node)) == name:
            return name, name
    return None


def _fields(tree: ast.AST) -> Iterator[str]:
    parts = [tree]
    while parts:
        part = parts.pop()
        if isinstance(part, ast.expr) and (named := _named(part)):
            if named[1] is not None:
                yield named[1]
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            parts += [part.func.value, *part.args]  # a method is no field
        else:
            parts += ast.iter_child_nodes(part)


def evaluate(where: Where, columns: Columns, extra: ExtraColumns, start: int, stop: int) -> Bools:
    """Return whether the condition holds for each of the samples `start` to `stop`: bool [n].

    Raises `UnknownColumn` for a column or field that is not there, and `PlanError` for one of
    another type, or a number that exceeds 64 bits.
    """
    return holds(where, where.tree, Span(columns, extra, start, stop))


def holds(where: Where, tree: ast.expr, span: Span) -> Bools:
    """Return whether `tree`, a part of `where`, is true of each sample of a span: bool [n]."""
    condition = _Evaluator(where.written, span).operand(tree, "condition")
    return pc.fill_null(condition, False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _divide(function: Any, a: pa.Array, b: pa.Array) -> pa.Array:
    """Divide as Python does, and not as Arrow; null where the divisor is 0."""
    divisors = pc.fill_null(b, 0).to_numpy()
    with np.errstate(all="ignore"):
        values = function(pc.fill_null(a, 0).to_numpy(), np.where(divisors == 0, 1, divisors))
    null = a.is_null().to_numpy(zero_copy_only=False)
    return pa.array(values, mask=null | (divisors == 0))


_FUNCTIONS: dict[type[ast.AST], Callable[..., pa.Array]] = {
    ast.And: pc.and_kleene,
    ast.Or: pc.or_kleene,
    ast.Add: pc.add_checked,
    ast.Sub: pc.subtract_checked,
    ast.Mult: pc.multiply_checked,
    ast.Div: partial(_divide, np.true_divide),
    ast.FloorDiv: partial(_divide, np.floor_divide),
    ast.Mod: partial(_divide, np.mod),
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}
_METHODS = {"startswith": pc.starts_with, "endswith": pc.ends_with}
_KNOWN = (
    "comparisons, and, or, not, + - * / // %, in, is None, .startswith(...), .endswith(...), "
    "field('a b')"
)
_REMEDIES = {
    ast.BitAnd: "write `and`",
    ast.BitOr: "write `or`",
    ast.Invert: "write `not`",
    ast.Pow: "write the product out",
}
_COMPARED = {
    "condition": "compare it with a number or string",
    "number": "compare numbers with numbers",
    "string": "compare `key`, `source` and other strings with strings in quotes",
}


class _Evaluator:
    """Evaluator of the parts of one expression: bool, int64, double or large_string [n]."""

    def __init__(self, written: str, span: Span) -> None:
        self._fault = partial(fault, written)
        self._span = span

    def operand(self, node: ast.expr, *kinds: str) -> pa.Array:
        """Return the value of a node of one of these kinds: condition, number, string."""
        value = self._value(node)
        if (kind := _kind(value)) not in kinds:
            problem = f"{clip(node)} is a {kind}, not a {' or '.join(kinds)}"
            raise self._fault(node, f"{problem}; {_COMPARED[kinds[0]]}")
        return value

    def _value(self, node: ast.expr) -> pa.Array:
        if named := _named(node):
            return self._column(node, named[0])
        match node:
            case ast.BoolOp(op=op, values=parts):
                return reduce(_FUNCTIONS[type(op)], [self.operand(p, "condition") for p in parts])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return pc.invert(self.operand(operand, "condition"))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.operand(operand, "number")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._apply(node, pc.negate_checked, self.operand(operand, "number"))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _FUNCTIONS:
                numbers = self.operand(left, "number"), self.operand(right, "number")
                return self._apply(node, _FUNCTIONS[type(op)], *numbers)
            case ast.Compare(ops=ops):
                sides = [node.left, *node.comparators]
                pairs = zip(sides, ops, sides[1:], strict=False)
                return reduce(pc.and_kleene, [self._compare(*pair) for pair in pairs])
            case ast.Call(func=ast.Attribute(value=column, attr=method), args=[affix], keywords=[]):
                if method in _METHODS:
                    strings = self._strings(column)
                    affixes = affix.elts if isinstance(affix, ast.Tuple) and affix.elts else [affix]
                    texts = [self._literal(each, "string") for each in affixes]
                    return reduce(pc.or_, [_METHODS[method](strings, text) for text in texts])
            case ast.Constant():
                value = self._literal(node, "number", "string")
                return pa.repeat(pa.scalar(value, _type([value])), self._span.size)
        part: Any = type(getattr(node, "op", node))
        remedy = _REMEDIES.get(part, f"there are {_KNOWN}")
        raise self._fault(node, f"{clip(node)}: {part.__name__} is not known here; {remedy}")

    def _compare(self, left: ast.expr, compared: ast.cmpop, right: ast.expr) -> pa.Array:
        match compared, right:
            case (ast.Is() | ast.IsNot(), _):
                if not (isinstance(right, ast.Constant) and right.value is None):
                    raise self._fault(right, "`is` is only for None; write == or !=")
                named = _named(left)
                others = ("string", "condition") if named and named[1] else ()
                value = self.operand(left, "number", *others)
                return value.is_null() if isinstance(compared, ast.Is) else value.is_valid()
            case (ast.In() | ast.NotIn(), _):
                hit = self._within(left, right)
                return hit if isinstance(compared, ast.In) else pc.invert(hit)
            case (ast.Eq() | ast.NotEq(), ast.Constant(value=bool(wanted))) if _named(left):
                value = self._value(left)
                if _kind(value) == "condition":
                    return value if wanted == isinstance(compared, ast.Eq) else pc.invert(value)
        a = self.operand(left, "number", "string")
        b = self.operand(right, _kind(a))
        return self._apply(left, _FUNCTIONS[type(compared)], a, b)

    def _within(self, left: ast.expr, right: ast.expr) -> pa.Array:
        if not isinstance(right, ast.Tuple | ast.List | ast.Set):
            return pc.match_substring(self._strings(right), self._literal(left, "string"))
        value = self.operand(left, "number", "string")
        choices = [self._literal(choice, _kind(value)) for choice in right.elts]
        kind = pa.float64() if value.type == pa.float64() else _type(choices)
        hit = pc.is_in(value.cast(kind, safe=False), pa.array(choices, kind))
        return pc.if_else(value.is_valid(), hit, None)

    def _strings(self, node: ast.expr) -> pa.Array:
        if not _named(node):
            problem = f"{clip(node)}: name `key`, `source` or a field here, or give a list"
            raise self._fault(node, problem)
        return self.operand(node, "string")

    def _literal(self, node: ast.expr, *kinds: str) -> Any:
        """Return the number or string that is written at a node."""
        try:
            value: Any = ast.literal_eval(node)
        except ValueError:
            value = None
        if {int: "number", float: "number", str: "string"}.get(type(value)) not in kinds:
            remedy = ", or write `is None`" if clip(node) == "None" else ""
            raise self._fault(node, f"{clip(node)}: give a {' or '.join(kinds)} here{remedy}")
        if isinstance(value, str):
            if any("\ud800" <= character <= "\udfff" for character in value):
                raise self._fault(node, f"{value!r} is half a character; write the whole one")
        elif not (abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value)):
            raise self._fault(node, "the number is too large; write one that fits into 64 bits")
        return value

    def _column(self, node: ast.expr, name: str) -> pa.Array:
        there = self._span.names
        if name in there:
            return self._span.column(name)
        if name in values.NEED_TEXT:
            needed = f"{name} needs text=TextSpec(tokenizer=..., template=...)"
            raise self._fault(node, f"no column {name!r} without a tokenizer; {needed}")
        near = sorted(sorted(there), key=lambda other: -SequenceMatcher(None, name, other).ratio())
        problem = f"no column {shorten(name)}; there are {', '.join(near)}"
        raise self._fault(node, problem, kind=UnknownColumn)

    def _apply(self, node: ast.expr, function: Callable[..., pa.Array], *of: pa.Array) -> pa.Array:
        if any(value.type == pa.float64() for value in of):  # Arrow refuses integers above 2 ** 53
            of = tuple(value.cast(pa.float64(), safe=False) for value in of)
        try:
            return function(*of)
        except pa.ArrowInvalid as error:
            problem = f"{clip(node)} exceeds 64 bits ({error}); compare with smaller numbers"
            raise self._fault(node, problem) from None


def _kind(value: pa.Array) -> str:
    kinds = {pa.bool_(): "condition", pa.large_string(): "string"}
    return kinds.get(value.type, "number")


def _type(choices: list[Any]) -> pa.DataType:
    """Return Arrow's type of numbers or strings that a user wrote."""
    if any(isinstance(choice, str) for choice in choices):
        return pa.large_string()
    return pa.float64() if any(isinstance(choice, float) for choice in choices) else pa.int64()


def fault(
    written: str, node: ast.expr, problem: str, *, kind: type[PlanError] = PlanError
) -> PlanError:
    """Return the error of a problem at `node` of the expression `written`."""
    # The parser was given one line before the text, and counts columns in bytes.
    lines = written.split("\n")
    above = min(max(node.lineno - 2, 0), len(lines) - 1)
    line = lines[above].encode(errors="replace")[: node.col_offset].decode(errors="replace")
    position = len("\n".join([*lines[:above], line]))
    start, stop = max(position - _SHOWN, 0), position + _SHOWN
    shown = "…" * (start > 0) + written[start:stop] + "…" * (stop < len(written))
    return kind(f"where={shown!r}, character {position + 1}: {problem}")


def clip(node: ast.expr) -> str:
    """Return a part of an expression for a message, cut if it is long."""
    text = ast.unparse(node)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
