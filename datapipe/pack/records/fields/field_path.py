"""Values of a record by a path such as `a.b[0].c`, a template, or a quoted text; lists in cells."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import StringIO
from itertools import pairwise
from tokenize import TokenError, generate_tokens
from typing import Any, Literal

from datapipe.errors import DecodeError, PackError

_STEP = re.compile(r"\[(?P<index>\d+|\*)\]|\.?(?P<name>[^.\[\]]+)")
_SLOT = re.compile(r"\{(?P<path>[^{}:]+)(?::(?P<spec>[^{}]*))?\}")

_APART = re.compile(r"['\"\]}]\s+['\"\[{]")  # between items of NumPy's lists, as pandas writes them


@dataclass(frozen=True)
class FieldSource:
    """Value of a record: a field, a part of one, or a text made of several."""

    label: str  # its spelling in `--map` and in notes
    fields: tuple[str, ...]  # names of the record's own fields that it reads
    # Returns the value of a record; None where the record does not have it
    get: Callable[[Mapping[str, Any]], Any] = field(compare=False)
    kind: Literal["field", "text", "computed"] = "computed"  # "text" is a template or a constant

    @property
    def is_several(self) -> bool:
        """Return whether it stands for every item of a list."""
        return self.kind == "field" and "[*]" in self.label

    def probe(self, record: Mapping[str, Any]) -> Any:
        """Return the value; None too for a record that the template does not fit."""
        with suppress(DecodeError):
            return self.get(record)
        return None

    def __str__(self) -> str:
        return self.label


def field_source(path: str) -> FieldSource:
    """Return the source of a field by its name or its path; `[*]` stands for every item of a list.

    Examples:
        >>> field_source("form[*].text").get({"form": [{"text": "Date:"}, {"text": "1998"}]})
        ['Date:', '1998']
    """
    steps = [step["name"] or f"[{step['index']}]" for step in _STEP.finditer(path)]
    fields = (path, *steps[:1]) if "." in path or "[" in path else (path,)

    def get(record: Mapping[str, Any]) -> Any:
        return record[path] if path in record else _walk(record, steps)  # names may have dots

    return FieldSource(path, fields, get, "field")


def parse_source(text: str) -> FieldSource:
    """Return the source of `'a text'`, of `a {field} in braces`, or of a path.

    A field in braces is formatted as `str.format` does.

    Raises:
        PackError: it is empty, a path with a broken bracket, or a text in quotes with `{folder}`.

    Examples:
        >>> parse_source("val2014/{image_id:012d}.jpg").get({"image_id": 42})
        'val2014/000000000042.jpg'
    """
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        if "{folder}" in text or "{stem}" in text:
            raise PackError(
                f"--map: {text} is in quotes, so that its braces would be learnt as they are; "
                f"leave the inner quotes out: {text[1:-1]}"
            )
        return FieldSource(repr(text[1:-1]), (), lambda record: text[1:-1], "text")
    slots = {slot[0]: field_source(slot["path"]) for slot in _SLOT.finditer(text)}

    def filled(record: Mapping[str, Any]) -> str | None:
        values = {slot: source.get(record) for slot, source in slots.items()}
        if any(value is None for value in values.values()):
            return None
        return _SLOT.sub(lambda slot: _format(values[slot[0]], slot), text)

    if slots:
        fields = tuple(name for source in slots.values() for name in source.fields)
        return FieldSource(text, fields, filled, "text")
    if not text or "".join(found[0] for found in _STEP.finditer(text)) != text:
        raise PackError(
            f"--map: {text!r} is no field; write a name, a path such as a.b[0].c or a[*].b, a "
            "template such as 'images/{id}.jpg', or a text in quotes"
        )
    return field_source(text)


def parse_list(value: Any) -> Any:
    """Return a value, or the list or object that a text spells as JSON or Python, or None.

    Tables without lists, such as CSV, hold conversations so.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text[:1] not in ("[", "{"):
        return None
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError, TypeError, TokenError):
        found = ast.literal_eval(_with_commas(text) if _APART.search(text) else text)
        return None if isinstance(found, tuple) else found
    return None


def _with_commas(text: str) -> str:
    """Return a list that NumPy has written without commas as Python writes it."""
    tokens = [token.string for token in generate_tokens(StringIO(text).readline)]
    items = [*filter(str.strip, tokens), ""]
    return "".join(
        f"{item}, " if _APART.fullmatch(f"{item[-1]} {after[:1]}") else f"{item} "
        for item, after in pairwise(items)
    )


def _walk(value: Any, steps: Sequence[str]) -> Any:
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if not step.startswith("["):
        return _walk(value.get(step), rest) if isinstance(value, Mapping) else None
    if not isinstance(value, list):
        return None
    if step == "[*]":
        found = [_walk(item, rest) for item in value]
        return [item for item in found if item is not None]
    index = int(step[1:-1])
    return _walk(value[index], rest) if index < len(value) else None


def _format(value: Any, slot: re.Match[str]) -> str:
    spec = slot["spec"] or ""
    if "d" in spec and isinstance(value, str) and value.isdecimal():
        value = int(value)
    try:
        return format(value, spec)
    except (ValueError, TypeError) as error:
        raise DecodeError(f"{slot[0]} does not fit {str(value)[:80]!r}: {error}") from error
