"""Checks of arguments and fields against their annotations.

`checked` wraps a function, a dataclass calls `check_fields`. Bounds and the words of messages are
in the annotation: `Annotated[int, Within(1)]`. Integers of any kind become Python's.
"""

from __future__ import annotations

import collections.abc
import operator
import os
import re
import reprlib
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache, partial, reduce, wraps
from inspect import unwrap
from itertools import islice
from math import inf, isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from datapipe.errors import DatapipeError
from datapipe.paths import expand_home, path_problem

P = ParamSpec("P")
R = TypeVar("R")
Take = Callable[[Any], Any]  # returns a value as it was declared, or raises `Refused`

_MOST_ITEMS = 10**6
_LONGEST_WORD = 1000
_LARGEST = 1e300  # of numbers that are no integers

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


class Refused(Exception):
    """A value is not what was declared; the text, if any, is the remedy."""


@dataclass(frozen=True)
class Within:
    """Bounds of a number, in an annotation. `above` and `below` are not in the range themselves."""

    least: float = -inf
    most: float = inf
    above: float = -inf
    below: float = inf

    def __call__(self, value: Any) -> Any:
        """Return the value if it is in the range; raise `Refused` otherwise."""
        if not (self.least <= value <= self.most and self.above < value < self.below):
            raise Refused
        return value

    def __str__(self) -> str:
        ends = {"from": self.least, "above": self.above, "to": self.most, "below": self.below}
        return "".join(f" {word} {end:,}" for word, end in ends.items() if isfinite(end))


@dataclass(frozen=True)
class Say:
    """Words of a message that replace the type, in an annotation."""

    what: str


@dataclass(frozen=True)
class AcceptedType:
    """Type that a value is given as, in an annotation; what follows converts it."""

    hint: Any


Count = Annotated[int, Within(1)]
Natural = Annotated[int, Within(0)]
Share = Annotated[float, Within(0, 1)]
Part = Annotated[float, Within(above=0, below=1), Say("a share between 0 and 1, such as 0.01")]
Positive = Annotated[float, Within(above=0)]
Seconds = Annotated[float, Within(above=0, below=1e6), Say("seconds, above 0 and below a million")]


@dataclass(frozen=True)
class _Rule:
    """Check of a value, and the words for what to give instead."""

    take: Take
    what: str

    def check(self, name: str, value: Any, error: type[DatapipeError], said: Take = str) -> Any:
        try:
            return self.take(value)
        except Refused as refused:
            what = str(refused) or self.what
            raise error(f"{said(name)} {shorten(value)}: give {what}") from None


def checked(error: type[DatapipeError]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the arguments of a function against its annotations, as far as known at run time.

    `error` is raised with the argument's name, its value and what to give instead.

    Examples:
        >>> @checked(DatapipeError)
        ... def twice(number: Annotated[int, Within(1)]) -> int:
        ...     return 2 * number
        >>> twice(0)
        Traceback (most recent call last):
        datapipe.errors.DatapipeError: number 0: give an integer from 1
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            check = partial(check_field, function, error=error)
            values = [check(name, value) for name, value in zip(names, args, strict=False)]
            options = {name: check(name, value) for name, value in kwargs.items()}
            return function(*values, *args[len(values) :], **options)  # type: ignore[arg-type]

        return call

    return decorate


def check_fields(options: Any, error: type[DatapipeError], said: Take = str) -> None:
    """Check a dataclass's fields and convert them; `said` makes the names in messages."""
    kind: Any = type(options)
    for name, rule in _rules_of(kind).items():
        value = getattr(options, name)
        converted = rule.check(name, value, error, said)
        if converted is not value:
            object.__setattr__(options, name, converted)


def check_field(
    kind: Any, name: str, value: Any, error: type[DatapipeError], said: Take = str
) -> Any:
    """Return a value as a field of a dataclass, or an argument of a function, has it."""
    rule = _rules_of(kind).get(name)
    return value if rule is None else rule.check(name, value, error, said)


def check_value(name: str, value: Any, declared: Any, error: type[DatapipeError]) -> Any:
    """Return the value as the annotation `declared` has it; `name` is the one in messages."""
    rule = _rule(declared)
    return value if rule is None else rule.check(name, value, error)


def _take_word(text: str) -> str:
    if len(text) > _LONGEST_WORD:
        raise Refused(f"a string of at most {_LONGEST_WORD:,} characters")
    return text


Word = Annotated[str, _take_word]


def take_int(value: Any) -> int:
    """Convert an integer of any kind to Python's; refuse bools and more than 64 bits."""
    if type(value) is not int:
        if isinstance(value, bool) or _ndim(value) or "bool" in str(getattr(value, "dtype", "")):
            raise Refused
        try:
            value = operator.index(value)
        except Exception:
            raise Refused from None
    if not -(2**63) <= value < 2**63:
        raise Refused("an integer that fits into 64 bits")
    return int(value)


def shorten(value: object) -> str:
    """Return the value in one line, for messages."""
    try:
        return " ".join(_short.repr(value).split())
    except Exception:
        return f"<{type(value).__name__}>"


@cache
def _rules_of(declared: Any) -> dict[str, _Rule]:
    """Return a rule for each annotated argument of a function, or each field of a dataclass."""
    hints = declared_types(declared).items()
    return {name: rule for name, hint in hints if (rule := _rule(hint)) is not None}


def declared_types(declared: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields, or of arguments, as far as known at run time."""
    scope = vars(sys.modules[unwrap(declared).__module__])
    annotations: dict[str, Any] = unwrap(declared).__annotations__
    if isinstance(declared, type):
        annotations = {field.name: field.type for field in fields(declared)}
    hints: dict[str, Any] = {}
    for name, annotation in annotations.items():
        with suppress(NameError):  # of type checkers alone
            hints[name] = eval(annotation, scope) if isinstance(annotation, str) else annotation
    return hints


def _rule(hint: Any) -> _Rule | None:
    """Return the rule of an annotation; None if it takes any value."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(_rule(args[0]), args[1:])
    if origin in (Union, types.UnionType):
        return _union(args)
    if origin is Literal:
        return _Rule(_one_of(args), _either(map(repr, args)))
    if origin is tuple:
        return _tuple(args)
    kind = origin or hint
    if kind in _SEVERAL:
        return _several(kind, _rule(args[0]) if args else None)
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if not isinstance(kind, type) or kind in (Any, object) or getattr(kind, "_is_protocol", False):
        return None
    return _Rule(_is(kind), f"a{'n' * (kind.__name__[0] in 'AEIOU')} {kind.__name__}")


def _annotated(rule: _Rule | None, metadata: Iterable[Any]) -> _Rule:
    steps, what = ([rule.take], rule.what) if rule else ([], "")
    for more in metadata:
        if isinstance(more, Say):
            what = more.what
        elif isinstance(more, AcceptedType):
            given = _rule(more.hint)
            steps = [given.take] if given else []
        else:
            steps.append(more)
            what += str(more) if isinstance(more, Within) else ""
    return _Rule(lambda value: reduce(lambda converted, step: step(converted), steps, value), what)


def _union(hints: Collection[Any]) -> _Rule | None:
    if os.PathLike[str] in hints:
        hints = dict.fromkeys(os.PathLike if h in (str, os.PathLike[str]) else h for h in hints)
    found = [_rule(hint) for hint in hints]
    rules = [rule for rule in found if rule is not None]
    if len(rules) < len(found):
        return None

    def take(value: Any) -> Any:
        remedies = []
        for rule in rules:
            try:
                return rule.take(value)
            except Refused as refused:
                remedies.append(str(refused))
        raise Refused(next(filter(None, remedies), ""))

    listed = (rule.what.replace("' or '", "', '").replace("e or F", "e, F") for rule in rules)
    return _Rule(take, _either(listed))


def _either(whats: Iterable[str]) -> str:
    *most, last = whats
    return f"{', '.join(most)} or {last}" if most else last


def take_if(allowed: Callable[[Any], object]) -> Take:
    """Return a check of values, for annotations: those that are not `allowed` are refused."""

    def take(value: Any) -> Any:
        if not allowed(value):
            raise Refused
        return value

    return take


def take_options(kind: type) -> Take:
    """Return a check for annotations: a dataclass of options, or a mapping with some of them."""
    names = [field.name for field in fields(kind)]

    def take(value: Any) -> Any:
        if isinstance(value, Mapping) and set(value) <= set(names):
            return kind(**value)
        if not isinstance(value, kind):
            raise Refused(f"a {kind.__name__}, or a mapping with {', '.join(names)}")
        return value

    return take


def _is(kind: Any) -> Take:
    return take_if(lambda value: isinstance(value, kind))


def _one_of(choices: tuple[Any, ...]) -> Take:
    def take(value: Any) -> Any:
        for choice in choices:
            if isinstance(value, type(choice)) and value == choice:
                return choice
        raise Refused

    return take


def _tuple(args: tuple[Any, ...]) -> _Rule:
    open_end = args[-1:] == (...,)
    rules = [_rule(arg) for arg in args if arg is not ...]
    whats = [rule.what if rule else "anything" for rule in rules]

    def take(value: Any) -> Any:
        several = isinstance(value, tuple | list) or _ndim(value)
        if not several or not (open_end or len(value) == len(rules)):
            raise Refused
        rules_now = rules * len(value) if open_end else rules
        return tuple(r.take(v) if r else v for r, v in zip(rules_now, value, strict=True))

    return _Rule(take, f"a tuple of {whats[0]} each" if open_end else f"({', '.join(whats)})")


def _several(kind: Any, rule: _Rule | None) -> _Rule:
    def take(value: Any) -> Any:
        has = partial(hasattr, type(value))
        if isinstance(value, str | bytes | bytearray | Mapping) or _ndim(value) == 0:
            raise Refused
        listed = has("__iter__") or has("__getitem__")
        if not listed or (kind is not collections.abc.Iterable and not has("__len__")):
            raise Refused
        if rule is None:
            return value
        items = tuple(islice(iter(value), _MOST_ITEMS + 1))
        if len(items) > _MOST_ITEMS:
            raise Refused(f"at most {_MOST_ITEMS:,} of them")
        return tuple(map(rule.take, items))

    return _Rule(take, "several in a list" if rule is None else f"a list, each {rule.what}")


def _take_float(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        dtype = str(getattr(value, "dtype", ""))
        if isinstance(value, bool | complex) or _ndim(value) or re.search("bool|complex", dtype):
            raise Refused
        if not hasattr(type(value), "__float__") and not hasattr(type(value), "__index__"):
            raise Refused
        try:
            value = float(value)
        except Exception:
            raise Refused from None
    if not -_LARGEST < value < _LARGEST:  # a NaN is refused too
        raise Refused
    return value  # type: ignore[no-any-return]


def _take_bool(value: Any) -> bool:
    if isinstance(value, bool) or (type(value).__name__ in ("bool_", "bool") and _ndim(value) == 0):
        return bool(value)
    raise Refused


def take_path(value: Any) -> Any:
    """Return a path, with the home folder for `~`; refuse what no path can be."""
    if not isinstance(value, str | os.PathLike):
        raise Refused
    try:
        text, encoded = os.fspath(value), os.fsencode(value)
    except Exception:
        raise Refused from None
    if not isinstance(text, str) or not text:
        raise Refused
    if problem := path_problem(text, encoded):
        raise Refused(problem)
    if (expanded := expand_home(text)) == text:
        return value
    return Path(expanded) if isinstance(value, Path) else expanded


def _ndim(value: Any) -> int | None:
    ndim = getattr(value, "ndim", None)
    return ndim if type(ndim) is int else None


_SEVERAL = (collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_PATH = _Rule(take_path, "a path")
_MAPPING = _Rule(
    take_if(lambda value: isinstance(value, Mapping) and all(isinstance(n, str) for n in value)),
    "a dict with names as keys",
)
_SIMPLE: dict[Any, _Rule] = {
    int: _Rule(take_int, "an integer"),
    float: _Rule(_take_float, "a number"),
    bool: _Rule(_take_bool, "True or False"),
    str: _Rule(_is(str), "a string"),
    type(None): _Rule(_is(type(None)), "None"),
    Path: _Rule(lambda value: Path(take_path(value)), _PATH.what),
    os.PathLike: _PATH,
    dict: _MAPPING,
    collections.abc.Mapping: _MAPPING,
    collections.abc.Callable: _Rule(take_if(callable), "a function"),
}
