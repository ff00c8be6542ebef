"""Options of commands: type, default and help of many come from the fields of dataclasses."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from datapipe.declared import check_value, declared_types
from datapipe.errors import PlanError

_NUMBERS = re.compile(r"[\d.]+(\s*[,:x]\s*[\d.]+)+")
_ATTRIBUTE = re.compile(r"^    (\w+(?:, \w+)*): ((?:.+\n?)(?:        .+\n?)*)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Flag:
    """An option of a command, such as `--pack-window`."""

    name: str  # as a keyword: `pack_window`
    kind: Any  # type that typer reads: int, float, bool or str
    default: Any
    help: str  # a sentence
    parse: Callable[[Any, str], Any] | None = None  # called with what was given, and `option`
    owner: type[Any] | None = None  # dataclass that has it as a field; None without one
    field: str = ""  # name there

    @property
    def option(self) -> str:
        """The option as it is typed: `--pack-window`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def annotation(self) -> Any:
        names = [self.option] if self.kind is bool and not self.default else []
        kind = self.kind if self.default is not None else self.kind | None
        return Annotated[kind, typer.Option(*names, help=self.help)]

    def value(self, given: Any) -> Any:
        return given if self.parse is None else self.parse(given, self.option)


def own_flag(
    name: str,
    help: str,
    kind: Any = str,
    default: Any = None,
    parse: Callable[[Any, str], Any] | None = None,
) -> Flag:
    return Flag(name=name, kind=kind, default=default, help=help, parse=parse)


def joined(given: list[str] | None, option: str = "") -> str | None:
    """Return the values of an option that may be given several times as one."""
    return ",".join(given) if given else None


def flag_of(
    owner: Callable[..., Any], field: str, name: str = "", help: str = "", **changes: Any
) -> Flag:
    """Make an option of a field of a dataclass, or of an argument, which its function checks.

    Its name is that of the field, if not given, and its help the first sentence of the docstring.
    `changes` are attributes of the flag that differ from the declaration.
    """
    is_field = isinstance(owner, type)
    kind = _read_as(declared_types(owner)[field])
    default = inspect.signature(owner).parameters[field].default
    has_default = isinstance(default, kind) and not (is_field and kind is str)
    found: dict[str, Any] = {
        "name": name or field,
        "kind": kind,
        "default": default if has_default else None,
        "help": help or help_of(owner, field),
    }
    if is_field:
        found |= {"parse": partial(field_value, owner, field), "owner": owner, "field": field}
    return Flag(**found | changes)


def flags_of(owner: Callable[..., Any], *names: str) -> list[Flag]:
    """Make options of fields or arguments that have the same names."""
    return [flag_of(owner, name) for name in names]


def help_of(owner: Callable[..., Any], field: str) -> str:
    """Return the first sentence of a docstring about a dataclass's field, or an argument."""
    if sys.flags.optimize > 1:  # without docstrings
        return ""
    for match in _ATTRIBUTE.finditer(inspect.getdoc(owner) or ""):
        if field in match[1].split(", "):
            sentence = " ".join(match[2].split()).partition(". ")[0].rstrip(".")
            # A sentence may begin with a value in quotes.
            return re.sub(r'[`"]', "", f"{sentence[0].upper()}{sentence[1:]}.")
    raise AssertionError(f"{owner.__name__} does not document {field}")


def field_value(owner: Callable[..., Any], field: str, given: Any, option: str) -> Any:
    """Return the value of a dataclass's field from the text on the command line.

    Texts are read as `none`, `true`, `7`, `0.5`, `480x640`, `0.2:1`, `128,512` or themselves,
    whichever the field takes first.
    """
    declared = declared_types(owner)[field]
    for reading in _readings(given):
        with suppress(PlanError):
            return check_value(option, reading, declared, PlanError)
    return check_value(option, given, declared, PlanError)


def _readings(given: Any) -> Iterator[Any]:
    if not isinstance(given, str):
        return
    if given == "none":
        yield None
    if given.lower() in ("true", "false"):
        yield given.lower() == "true"
    for number in (int, float):
        with suppress(ValueError):
            yield number(given)
    if _NUMBERS.fullmatch(given):
        parts = re.split("[,:x]", given)
        for number in (int, float):
            with suppress(ValueError):
                yield tuple(map(number, parts))


def _read_as(declared: Any) -> type[Any]:
    """Return the type that typer reads: numbers and switches as such, all else as text."""
    if get_origin(declared) is Annotated:
        return _read_as(get_args(declared)[0])
    if get_origin(declared) in (Union, UnionType):
        kinds = {_read_as(inner) for inner in get_args(declared) if inner is not NoneType}
        return kinds.pop() if len(kinds) == 1 else str
    return declared if declared in (int, bool, float) else str
