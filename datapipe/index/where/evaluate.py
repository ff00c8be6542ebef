"""Vectorised evaluation of a `where` over ranges of samples.

Conditions have three values, as in SQL: what compares a number that a sample does not have is
neither true nor false, and only samples for which the condition is true take part.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.array_types import Bools
from datapipe.index.columns import Columns
from datapipe.index.where.syntax import STRINGS, Where, check_tree, fault, literal
from datapipe.index.where.values import ExtraColumns, Numbers, Span

_TOO_LARGE = 2.0**63

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
}
_COMPARISONS: dict[type[ast.cmpop], tuple[Callable[[Any, Any], Any], str]] = {
    ast.Eq: (operator.eq, "equal"),
    ast.NotEq: (operator.ne, "not_equal"),
    ast.Lt: (operator.lt, "less"),
    ast.LtE: (operator.le, "less_equal"),
    ast.Gt: (operator.gt, "greater"),
    ast.GtE: (operator.ge, "greater_equal"),
}


class Truth(NamedTuple):
    """Samples of which a condition is true, and of which it is false: bool [n] or []."""

    true: Bools
    false: Bools


def evaluate(where: Where, columns: Columns, extra: ExtraColumns, start: int, stop: int) -> Bools:
    """Return whether the condition holds for each of the samples `start` to `stop`: bool [n].

    See `Span` for `extra`.

    Raises:
        PlanError: the expression names a column that is not there, divides by zero or exceeds 64
            bits at a sample that its other terms leave undecided.
    """
    check_tree(where.written, where.tree, extra=extra.keys())
    return holds(where, where.tree, Span(columns, extra, start, stop))


def holds(where: Where, tree: ast.expr, span: Span, *, lenient: bool = False) -> Bools:
    """Return whether `tree`, a checked part of `where`, is true of each sample: bool [n].

    With `lenient`, numbers that cannot be computed count as missing.
    """
    asked = np.full(span.size, not lenient)
    with np.errstate(all="ignore"):  # checked here, where the position in the expression is known
        true = _Evaluator(where, span).truth(tree, asked).true
    return np.broadcast_to(true, asked.shape)


class _Evaluator:
    """Evaluator of one span; `asked` marks the samples for which a value matters.

    Only there is a number that cannot be computed an error.
    """

    def __init__(self, where: Where, span: Span) -> None:
        self._where = where
        self._span = span

    def truth(self, node: ast.expr, asked: Bools) -> Truth:
        match node:
            case ast.BoolOp(op=ast.And(), values=values):
                return _all([partial(self.truth, value) for value in values], asked)
            case ast.BoolOp(op=ast.Or(), values=values):
                return _negated(_all([partial(self._untruth, value) for value in values], asked))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._untruth(operand, asked)
            case ast.Call(func=ast.Attribute(attr=method, value=ast.Name(id=name))):
                affix = node.args[0]
                choices = affix.elts if isinstance(affix, ast.Tuple) else [affix]
                found = pc.starts_with if method == "startswith" else pc.ends_with
                strings = self._span.strings(name)
                hits = [_as_bools(found(strings, literal(choice))) for choice in choices]
                return _certain(np.logical_or.reduce(hits))
        assert isinstance(node, ast.Compare)
        sides = [node.left, *node.comparators]
        pairs = zip(sides, node.ops, sides[1:], strict=False)
        return _all([partial(self._pair, *pair) for pair in pairs], asked)

    def _untruth(self, node: ast.expr, asked: Bools) -> Truth:
        return _negated(self.truth(node, asked))

    def _pair(self, left: ast.expr, compared: ast.cmpop, right: ast.expr, asked: Bools) -> Truth:
        match compared:
            case ast.Is() | ast.IsNot():
                known = self.numbers(left, asked).known
                return _certain(~known if isinstance(compared, ast.Is) else known)
            case ast.In():
                return self._within(left, right, asked)
            case ast.NotIn():
                return _negated(self._within(left, right, asked))
        of_numbers, of_strings = _COMPARISONS[type(compared)]
        if _is_string(left):
            compare = getattr(pc, of_strings)
            return _certain(_as_bools(compare(self._strings(left), self._strings(right))))
        a, b = self.numbers(left, asked), self.numbers(right, asked)
        known, hit = a.known & b.known, of_numbers(a.values, b.values)
        return Truth(known & hit, known & ~hit)

    def _within(self, left: ast.expr, right: ast.expr, asked: Bools) -> Truth:
        if isinstance(right, ast.Name):
            strings = self._span.strings(right.id)
            return _certain(_as_bools(pc.match_substring(strings, literal(left))))
        assert isinstance(right, ast.Tuple | ast.List | ast.Set)
        choices = [literal(element) for element in right.elts]
        if _is_string(left):
            wanted = pa.array(choices, pa.large_string())
            return _certain(_as_bools(pc.is_in(self._strings(left), wanted)))
        numbers = self.numbers(left, asked)
        hit = np.isin(numbers.values, np.array(choices))
        return Truth(numbers.known & hit, numbers.known & ~hit)

    def _strings(self, node: ast.expr) -> pa.Array | pa.Scalar:
        if isinstance(node, ast.Name):
            return self._span.strings(node.id)
        return pa.scalar(literal(node), pa.large_string())

    def numbers(self, node: ast.expr, asked: Bools) -> Numbers:
        match node:
            case ast.Name(id=name):
                return self._span.numbers(name)
            case ast.Constant(value=value):
                return Numbers(values=np.asarray(value), known=np.asarray(True))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.numbers(operand, asked)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                zero = Numbers(values=np.asarray(0), known=np.asarray(True))
                return self._computed(node, ast.Sub, zero, self.numbers(operand, asked), asked)
        assert isinstance(node, ast.BinOp)
        a, b = self.numbers(node.left, asked), self.numbers(node.right, asked)
        return self._computed(node, type(node.op), a, b, asked)

    def _computed(
        self, node: ast.expr, kind: type[ast.operator], a: Numbers, b: Numbers, asked: Bools
    ) -> Numbers:
        known = a.known & b.known
        if kind in (ast.Div, ast.FloorDiv, ast.Mod):
            assert isinstance(node, ast.BinOp)
            zero = known & (b.values == 0)
            remedy = f"put `{ast.unparse(node.right)} != 0 and` before it"
            self._refuse(node, zero & asked, "divides by zero", remedy)
            known = known & ~zero
        values = _ARITHMETIC[kind](a.values, b.values)
        # Integers wrap around in silence; computed in floating point they do not.
        large = _ARITHMETIC[kind](a.values.astype(np.float64), b.values.astype(np.float64))
        bound = _TOO_LARGE if values.dtype.kind == "i" else np.inf
        over = known & ~(np.abs(large) < bound)
        self._refuse(node, over & asked, "exceeds 64 bits", "compare with smaller numbers")
        return Numbers(values=np.asarray(values), known=known & ~over)

    def _refuse(self, node: ast.expr, wrong: Bools, problem: str, remedy: str) -> None:
        if wrong.any():
            key = self._span.key(int(np.flatnonzero(wrong)[0]))
            what = f"{ast.unparse(node)} {problem} at sample {key}; {remedy}"
            raise fault(self._where.written, node, what)


def _all(parts: list[Callable[[Bools], Truth]], asked: Bools) -> Truth:
    true, false = np.ones_like(asked), np.zeros_like(asked)
    for part in parts:
        found = part(asked)
        true, false = true & found.true, false | found.false
        asked = asked & ~found.false
    return Truth(true, false)


def _negated(truth: Truth) -> Truth:
    return Truth(truth.false, truth.true)


def _certain(true: Bools) -> Truth:
    return Truth(true, ~true)


def _as_bools(found: pa.Array) -> Bools:
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)


def _is_string(node: ast.expr) -> bool:
    return isinstance(literal(node), str) or (isinstance(node, ast.Name) and node.id in STRINGS)
