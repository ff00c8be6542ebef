"""Values of dicts and files with the location at which a user wrote them, for messages."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import yaml

from datapipe.declared import check_value, shorten
from datapipe.errors import PlanError
from datapipe.index.images.header import is_image_name
from datapipe.index.manifest import MANIFEST
from datapipe.index.raw_data import pack_first
from datapipe.mixture.spec import KEYS, Mixture, MixtureDataset, MixtureGroup


def keys_of(kind: Any) -> tuple[str, ...]:
    """Return the fields of a part of a mixture as files and dicts name them."""
    return tuple(KEYS.get(item.name, item.name) for item in fields(kind) if item.compare)


DATASET_KEYS = keys_of(MixtureDataset)
GROUP_KEYS = (*keys_of(MixtureGroup), "text", "image")
MIXTURE_KEYS = (*keys_of(Mixture), "text", "image")

_DEEPEST = 50  # of nested mappings and lists, well within Python's recursion limit
_TOO_DEEP = f"more than {_DEEPEST} levels; nest fewer groups"
_EMPTY = "the file is empty; give datasets, such as `captions/: 0.7`"
_LONGEST_KEY = 60  # characters in messages
_MOST_BYTES = 64 * 2**20
# The one in C is ten times faster, which files of a thousand datasets need.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SCALARS = ("null", "bool", "int", "float", "str", "timestamp")
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")  # YAML 1.1 takes 1e-5 as a string
_LOOKED_AT = 20  # records
_WORDS = 3  # of a text that is no weight, repeat or amount


@dataclass(frozen=True)
class LocatedValue:
    """A value of a mapping or file."""

    value: Any  # a plain value, a dict or list of `LocatedValue`, or any object
    place: str  # begins messages: `mixture.yaml:12: ` or `mixture["chats"]["weight"]: `
    name: str  # the same for messages that show the value: `mixture.yaml:12: weight`

    def refuse(self, message: str) -> NoReturn:
        """Raise a `PlanError` that begins with the location."""
        raise PlanError(self.place + message)

    def refuse_value(self, remedy: str) -> NoReturn:
        """Raise a `PlanError` that shows the value."""
        raise PlanError(f"{self.name} {shorten(self.plain())}: {remedy}")

    def take(self, declared: Any) -> Any:
        """Return the value as an annotation declares it; raise a `PlanError` if it does not fit."""
        return check_value(self.name, self.plain(), declared, PlanError)

    def plain(self) -> Any:
        """Return the value without locations."""
        if isinstance(self.value, dict):
            return {name: item.plain() for name, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value

    def mapping(self, known: Collection[str], what: str) -> dict[str, LocatedValue]:
        """Return the entries of a mapping; raise a `PlanError` if a key is not known."""
        if not isinstance(self.value, dict):
            self.refuse_value(f"give a mapping with {', '.join(known)}")
        for key, item in self.value.items():
            if key not in known:
                near = get_close_matches(key, known, 1, 0.7)
                hint = f", do you mean {near[0]!r}?" if near else ""
                item.refuse(
                    f"{shorten(key)} is not an option of {what}{hint}; it has {', '.join(known)}"
                )
        return self.value


def located(value: Any, place: str = "mixture", depth: int = 0) -> LocatedValue:
    """Return a Python value with the keys that lead to each of its parts, or raise `PlanError`."""
    if depth > _DEEPEST:
        raise PlanError(f"{place}: {_TOO_DEEP}")
    made: Any = value
    if isinstance(value, Mapping):
        made = {}
        for key, item in value.items():
            text = os.fspath(key) if isinstance(key, str | os.PathLike) else key
            if not isinstance(text, str):
                raise PlanError(f"{place} {shorten(value)}: give a dict with names as keys")
            if text in made:
                raise PlanError(f"{place}: key {shorten(text)} is given twice; leave one out")
            shown = text if len(text) <= _LONGEST_KEY else text[:_LONGEST_KEY] + "..."
            made[text] = located(item, f'{place}["{shown}"]', depth + 1)
    elif isinstance(value, list | tuple):
        made = [located(item, f"{place}[{n}]", depth + 1) for n, item in enumerate(value)]
    return LocatedValue(made, f"{place}: ", place)


def read_file(name: str) -> LocatedValue:
    """Return the content of a YAML or JSON file, with the line of each value.

    Only mappings, lists, strings, numbers, booleans and null are read. All else is a `PlanError`,
    and so is a file of raw data.
    """
    text = _text(name)
    if name.endswith(".json"):
        _refuse_records(name, _json_start(text))  # before YAML takes minutes for them
        # YAML refuses indentation by tabs.
        text = re.sub(r"^\t+", lambda tabs: " " * len(tabs[0]), text, flags=re.MULTILINE)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            if getattr(event, "anchor", None):
                _line(name, event.start_mark).refuse(
                    "anchors and aliases (& and *) are not read; write the value out, or give it "
                    "to the whole group"
                )
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or getattr(error, "reason", "it cannot be parsed")
        at = _line(name, getattr(error, "problem_mark", None))
        raise PlanError(
            f"{at.place}not YAML: {problem}; check indentation, colons and quotes"
        ) from None
    except RecursionError:
        raise PlanError(f"{name}: {_TOO_DEEP}") from None
    return _located_node(root, _line(name, root and root.start_mark, "mixture"), name, 0)


def _text(name: str) -> str:
    try:
        path = Path(name)
        if path.stat().st_size > _MOST_BYTES:
            raise PlanError(pack_first(name, f"more than {_MOST_BYTES:,} bytes"))
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PlanError(f"{name}: not UTF-8 ({error.reason}); save it as UTF-8") from None
    except OSError as error:
        raise PlanError(
            f"path {name}: {error.strerror or error}; give a YAML or JSON file of a mixture"
        ) from None


def _line(file: str, mark: Any, key: str = "") -> LocatedValue:
    place = f"{file}:{mark.line + 1 if mark else 1}: "
    return LocatedValue(None, place, place + key)


def _located_node(node: Any, at: LocatedValue, file: str, depth: int) -> LocatedValue:
    """Return a node at the location of its key, or at its own in a list."""
    if node is None:
        at.refuse(_EMPTY)
    if depth > _DEEPEST:
        at.refuse(_TOO_DEEP)
    kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
    made: Any
    if isinstance(node, yaml.MappingNode) and kind == "map":
        made = {}
        for key, item in node.value:
            of_key = _line(file, key.start_mark, str(key.value))
            if not isinstance(key, yaml.ScalarNode):
                of_key.refuse("a key is a list or mapping; write a name")
            name = str(key.value)  # as written: a dataset may be called 2024 or on
            if name in made:
                first = made[name].place.removesuffix(": ")
                of_key.refuse(
                    f"key {shorten(name)} is given twice, first in {first}; leave one out"
                )
            made[name] = _located_node(item, of_key, file, depth + 1)
    elif isinstance(node, yaml.SequenceNode) and kind == "seq":
        key = at.name.removeprefix(at.place)
        made = [
            _located_node(item, _line(file, item.start_mark, f"{key}[{number}]"), file, depth + 1)
            for number, item in enumerate(node.value)
        ]
    elif isinstance(node, yaml.ScalarNode) and kind in _SCALARS:
        made = _scalar(node, kind, at)
    else:
        at.refuse(f"tag {shorten(node.tag)} is not read; write a plain value")
    return LocatedValue(made, at.place, at.name)


def _scalar(node: yaml.ScalarNode, kind: str, at: LocatedValue) -> Any:
    text = str(node.value)
    if kind == "str" and node.style in (None, "") and _EXPONENT.fullmatch(text):
        return float(text)
    if kind in ("str", "timestamp"):
        return text
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (ValueError, KeyError, yaml.YAMLError):
        return at.refuse(f"{shorten(text)} is no {kind}; write a plain value")


def _refuse_records(path: str, value: Any) -> None:
    """Refuse a value that was read from a JSON file, if it is raw records or a manifest."""
    if isinstance(value, dict) and value.get("format") == "datapipe":
        folder = os.path.dirname(os.path.abspath(path))
        raise PlanError(f"{path} is the {MANIFEST} of a dataset; give its folder, {folder}")
    if _holds_records(value):
        raise PlanError(pack_first(path, "records, not a mixture"))


def _holds_records(value: Any) -> bool:
    """Return True if the content of a file is records of raw data, and cannot be a mixture."""
    if isinstance(value, list):
        return any(map(_is_record, value[:_LOOKED_AT]))
    if not isinstance(value, dict) or "datasets" in value:
        return False
    return any(
        is_image_name(key)
        or (isinstance(item, str) and len(item.split()) >= _WORDS)
        or (isinstance(item, list) and _holds_records(item))
        or (isinstance(item, dict) and _names_image(item))
        for key, item in islice(value.items(), _LOOKED_AT)
        if key not in MIXTURE_KEYS
    )


def _is_record(item: Any) -> bool:
    if isinstance(item, str):
        return is_image_name(item)
    if isinstance(item, dict):
        return not item.keys() <= {*DATASET_KEYS, *GROUP_KEYS} or _names_image(item)
    return isinstance(item, list)


def _names_image(item: dict[str, Any]) -> bool:
    return any(isinstance(value, str) and is_image_name(value) for value in item.values())


def _json_start(text: str) -> Any:
    """Return the value of a JSON text, or a list with the first record of a list or JSON Lines."""
    start = text.lstrip()
    is_list = start.startswith("[")
    try:
        first, end = json.JSONDecoder().raw_decode(start[is_list:].lstrip())
    except (ValueError, RecursionError):
        return None
    return [first] if is_list or start[end:].lstrip().startswith("{") else first
