"""YAML and JSON files as values with line numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from datapipe.declared import shorten
from datapipe.errors import PlanError
from datapipe.index.raw_data import pack_first
from datapipe.mixture.located import DEEPEST, Located
from datapipe.mixture.raw_records import json_start, refuse_records

# The one in C is ten times faster, which files of a thousand datasets need.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST_BYTES = 64 * 2**20
_SCALARS = ("null", "bool", "int", "float", "str", "timestamp")
_PREFIX = "tag:yaml.org,2002:"
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")  # YAML 1.1 takes 1e-5 as a string


def read_file(name: str) -> Located:
    """Return the content of a YAML or JSON file, with the line of each value.

    Only mappings, lists, strings, numbers, booleans and null are read.

    Raises:
        PlanError: the file cannot be read, is no YAML, has a key twice, has tags, anchors or
            aliases, or holds raw data.
    """
    text = _text(name)
    if name.endswith(".json"):
        refuse_records(name, json_start(text))  # before YAML takes minutes for them
        # YAML refuses indentation by tabs.
        text = re.sub(r"^\t+", lambda tabs: " " * len(tabs[0]), text, flags=re.MULTILINE)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            if getattr(event, "anchor", None):
                line = event.start_mark.line + 1
                raise PlanError(
                    f"{name}:{line}: anchors and aliases (& and *) are not read; write the value "
                    "out, or give it to the whole group"
                )
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or getattr(error, "reason", "it cannot be parsed")
        raise PlanError(
            f"{name}:{line}: not YAML: {problem}; check indentation, colons and quotes"
        ) from None
    except RecursionError:
        raise PlanError(f"{name}: more than {DEEPEST} levels; give fewer groups") from None
    if root is None:
        raise PlanError(f"{name}:1: the file is empty; give datasets, such as `captions/: 0.7`")
    made = _value(root, name, root.start_mark.line, "mixture", 0)
    refuse_records(name, made.plain())
    return made


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


def _value(node: yaml.Node, file: str, line: int, key: str, depth: int) -> Located:
    """Return a node; `line`, from 0, is that of its key, or its own in a list."""
    place = f"{file}:{line + 1}: "
    made = Located(None, place, place + key)
    if depth > DEEPEST:
        made.refuse(f"more than {DEEPEST} levels; give fewer groups inside each other")
    kind = str(node.tag).removeprefix(_PREFIX)
    if isinstance(node, yaml.MappingNode) and kind == "map":
        return Located(_entries(node, file, depth), made.place, made.name)
    if isinstance(node, yaml.SequenceNode) and kind == "seq":
        items = [
            _value(item, file, item.start_mark.line, f"{key}[{number}]", depth + 1)
            for number, item in enumerate(node.value)
        ]
        return Located(items, made.place, made.name)
    if isinstance(node, yaml.ScalarNode) and kind in _SCALARS:
        return Located(_scalar(node, kind, made), made.place, made.name)
    return made.refuse(f"tag {shorten(node.tag)} is not read; write a plain value")


def _entries(node: yaml.MappingNode, file: str, depth: int) -> dict[str, Located]:
    entries: dict[str, Located] = {}
    for key, value in node.value:
        line = key.start_mark.line
        place = f"{file}:{line + 1}: "
        if not isinstance(key, yaml.ScalarNode):
            raise PlanError(f"{place}a key is a list or mapping; write a name")
        name = str(key.value)  # as written: a dataset may be called 2024 or on
        if name in entries:
            raise PlanError(
                f"{place}key {shorten(name)} is given twice, first in {entries[name].place[:-2]}; "
                "leave one out"
            )
        entries[name] = _value(value, file, line, name, depth + 1)
    return entries


def _scalar(node: yaml.ScalarNode, kind: str, at: Located) -> Any:
    text = str(node.value)
    if kind == "str" and node.style in (None, "") and _EXPONENT.fullmatch(text):
        return float(text)
    if kind in ("str", "timestamp"):
        return text
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (ValueError, KeyError, yaml.YAMLError):
        return at.refuse(f"{shorten(text)} is no {kind}; write a plain value")
