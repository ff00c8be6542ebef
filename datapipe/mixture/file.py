"""Reader of YAML and JSON files that keeps the line of each value."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from datapipe.declared import shorten
from datapipe.errors import PlanError
from datapipe.index.images.header import is_image_name
from datapipe.index.manifest import MANIFEST
from datapipe.index.raw_data import pack_first
from datapipe.mixture.place import Keys, Place

_MOST_BYTES = 16 * 2**20
_EMPTY = "the file is empty; give datasets, such as `captions/: 0.7`"
# The one in C is ten times faster, which files of a thousand datasets need.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")  # YAML 1.1 takes 1e-5 as a string
_LOOKED_AT = 1 << 16  # characters of a JSON file
# A string of JSON after the name of an option that may be a sentence, and a colon after a key
_STRING = re.compile(
    r'(?:"(where|epoch|name|path|system|template)"\s*:\s*)?"((?:[^"\\]|\\.)*)"\s*(:?)'
)
_WORDS = 3  # of a sentence


def read_file(name: str) -> tuple[Any, Place]:
    """Return the content of a YAML or JSON file, and its place, which has the lines.

    Only mappings, lists, strings, numbers, booleans and null are read. All else is a `PlanError`,
    and so is a file of raw data.
    """
    lines: dict[Keys, int] = {(): 1}
    place = Place(name, (), lines)
    text = _text(name)
    if name.endswith(".json"):
        start = text[:_LOOKED_AT]
        if '"format": "datapipe"' in start:
            folder = Path(name).absolute().parent
            raise PlanError(f"{name} is the {MANIFEST} of a dataset; give its folder, {folder}")
        if _holds_records(start):  # before YAML takes minutes for them
            raise PlanError(pack_first(name, "records, not a mixture"))
        text = text.replace("\t", " ")  # YAML refuses indentation by tabs
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            if getattr(event, "anchor", None) or getattr(event, "tag", None):
                raise PlanError(
                    f"{name}:{event.start_mark.line + 1}: anchors, aliases and tags (&, * and !) "
                    "are not read; write the value out, or give it to the whole group"
                )
        root = yaml.compose(text, Loader=_LOADER)
        return (_value(root, place, lines) if root else place.refuse(_EMPTY)), place
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or getattr(error, "reason", "it cannot be parsed")
        mark = getattr(error, "problem_mark", None)
        raise PlanError(
            f"{name}:{mark.line + 1 if mark else 1}: not YAML: {problem}; check indentation, "
            "colons and quotes"
        ) from None
    except RecursionError:
        raise PlanError(f"{name}: it has too many levels; nest fewer groups") from None


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


def _value(node: Any, place: Place, lines: dict[Keys, int]) -> Any:
    """Return a node as a plain value. A value of a mapping has the line of its key."""
    lines.setdefault(place.keys, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, place.at(number), lines) for number, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    made = {}
    for key, item in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise PlanError(f"{place.root}:{line}: a key is a list or mapping; write a name")
        at = place.at(str(key.value))  # as written: a dataset may be called 2024 or on
        if at.keys in lines:
            raise PlanError(
                f"{place.root}:{line}: key {shorten(key.value)} is given twice, first in "
                f"{place.root}:{lines[at.keys]}; leave one out"
            )
        lines[at.keys] = line
        made[key.value] = _value(item, at, lines)
    return made


def _scalar(node: yaml.ScalarNode) -> Any:
    text = str(node.value)
    if not node.style and _EXPONENT.fullmatch(text):
        return float(text)
    if node.tag.rpartition(":")[2] in ("null", "bool", "int", "float"):
        with suppress(ValueError):  # YAML takes 0b_ for a number
            return yaml.constructor.SafeConstructor().construct_object(node)
    return text


def _holds_records(start: str) -> bool:
    """Return True if a JSON text names images or has sentences, as records of raw data do."""
    return '"datasets"' not in start and any(
        is_image_name(text) or (not option and not colon and len(text.split()) >= _WORDS)
        for option, text, colon in _STRING.findall(start)
    )
