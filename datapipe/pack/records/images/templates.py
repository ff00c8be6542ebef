"""Image files whose names hold the ids of records, and the template of their paths."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from datapipe.pack.input.survey import Survey
from datapipe.pack.records.fields.field_path import parse_source

_FILES = 20_000
_SEEN = 100_000  # files and folders, of any kind
_IDS = 20
_COLUMNS = 12
_OF_IDS = re.compile(r"(id|key|name|file|index)$", re.IGNORECASE)


def named_by(raw: Path, columns: Mapping[str, Sequence[Any]]) -> str | None:
    """Return the template of image files near `raw` that a column names by ids; None if none does.

    Most of its first values must be in the names of files; they have to differ, as those of a class
    do not, unless the column is called an id. The template is relative to the folder of `raw`.
    """
    base = raw.absolute().parent if raw.is_file() else raw
    images = {"": list(islice(_images(base), _FILES))}
    if raw.is_file():  # a file's images may be beside its folder
        images["../"] = list(islice(_images(base.parent), _FILES))
    for column, values in islice(columns.items(), _COLUMNS):
        ids = values[:_IDS]
        if not ids or any(isinstance(v, bool) or not isinstance(v, str | int) for v in ids):
            continue
        repeats = len({*ids}) < len(ids) and not _OF_IDS.search(column)
        if repeats or not (template := _template(images, column, ids)):
            continue
        names = (parse_source(template).probe({column: value}) for value in ids)
        if sum(os.path.isfile(base / str(name)) for name in names) * 2 > len(ids):
            return template
    return None


def _images(base: Path) -> Iterator[str]:
    for listing in Survey(base).walk(most=_SEEN):
        below = os.path.relpath(listing.folder, base)
        for name in listing.images:
            yield name if below == "." else f"{below}/{name}"


def _template(images: Mapping[str, Sequence[str]], column: str, ids: Sequence[Any]) -> str | None:
    """Return the template that fits most paths, of the first prefix where any fits."""
    wanted = set(map(str, ids))
    for prefix, paths in images.items():
        found: Counter[str] = Counter()
        for path in paths:
            folder, slash, name = path.rpartition("/")
            stem, _, ext = name.rpartition(".")
            digits = re.search(r"\d+$", stem)
            if stem in wanted:
                found[f"{folder}{slash}{{{column}}}.{ext}"] += 1
            elif digits and digits[0].lstrip("0") in wanted:
                slot = f"{stem[: digits.start()]}{{{column}:0{len(digits[0])}d}}"
                found[f"{folder}{slash}{slot}.{ext}"] += 1
        if found:
            return prefix + found.most_common(1)[0][0]
    return None
