"""Names of image files that records tell by an id: `{image_id:012d}.jpg` and the like."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from datapipe.index.imageinfo import is_image_extension
from datapipe.pack.records.fieldpath import parse_source

_FILES = 20_000
_IDS = 20
_COLUMNS = 12
_OF_IDS = re.compile(r"(id|key|name|file|index)$", re.IGNORECASE)


def template_of(raw: Path, column: str, ids: Sequence[Any]) -> str | None:
    """Return the template of the files near `raw` whose names hold these ids; None if none do.

    Args:
        raw: the file or folder of the records; a path below its folder is returned.
        column: the name of the ids.
        ids: some of them.

    Example:
        >>> template_of(Path("nowhere"), "image_id", [42]) is None
        True
    """
    if raw.is_file():  # the images may lie beside the folder of annotations
        here = raw.absolute().parent
        beside = template_of(here, column, ids)
        above = None if beside else template_of(here.parent, column, ids)
        return f"../{above}" if above else beside
    wanted = {str(value): value for value in ids[:_IDS]}
    found: Counter[str] = Counter()
    for path in islice(_images(raw), _FILES):
        folder, _, name = path.rpartition("/")
        stem, _, ext = name.rpartition(".")
        slot = _slot(stem, column, wanted)
        if slot is not None:
            found[f"{folder}/{slot}.{ext}" if folder else f"{slot}.{ext}"] += 1
    return found.most_common(1)[0][0] if found else None


def named_by(raw: Path, columns: Mapping[str, Sequence[Any]]) -> str | None:
    """Return the template of image files near `raw` that a column names by ids; None if none does.

    Most of its values must be in the names of files; they have to differ, as those of a class do
    not, unless the column is called an id.

    Args:
        raw: the file or folder of the records.
        columns: the first values of each.
    """
    base = raw.absolute().parent if raw.is_file() else raw
    for column, listed in islice(columns.items(), _COLUMNS):
        values = listed[:_IDS]
        if not values or not all(
            isinstance(value, str | int) and not isinstance(value, bool) for value in values
        ):
            continue
        repeats = len({*values}) < len(values) and not _OF_IDS.search(column)
        if repeats or not (template := template_of(raw, column, values)):
            continue
        source = parse_source(template)
        if sum(_is_file(base, source.get({column: value})) for value in values) * 2 > len(values):
            return template
    return None


def _is_file(base: Path, name: Any) -> bool:
    try:
        return os.path.isfile(base / str(name))
    except ValueError:
        return False


def _slot(stem: str, column: str, wanted: dict[str, Any]) -> str | None:
    if stem in wanted:
        return f"{{{column}}}"
    digits = re.search(r"\d+$", stem)
    if digits is None or digits[0].lstrip("0") not in wanted:
        return None
    return f"{stem[: digits.start()]}{{{column}:0{len(digits[0])}d}}"


def _images(base: Path) -> Any:
    for place, folders, files in os.walk(base):
        folders.sort()
        below = os.path.relpath(place, base)
        for name in sorted(files):
            if is_image_extension(name.rpartition(".")[2].lower()):
                yield name if below == "." else f"{below}/{name}"
