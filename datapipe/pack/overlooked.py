"""Files that a person means by a dataset and no reader takes: what to say of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from datapipe.errors import PackError
from datapipe.index.imageinfo import is_image_extension
from datapipe.pack.filekinds import is_paper
from datapipe.pack.raw import ReadOptions, look_at, printable
from datapipe.pack.records.containers import first_records, kind_of
from datapipe.pack.records.jsonstream import NotRecordsError
from datapipe.pack.records.locate import levels
from datapipe.pack.survey import start_of

_TEXTS = frozenset({"txt", "text", "token", "lst", "list"})
_IMAGE_NAME = re.compile(rb"[^\s\"'/]\.(jpe?g|png|webp|gif|bmp|tiff?)\b", re.IGNORECASE)
_ONE_OBJECT = "it is one JSON object; write it as an array of records, or as JSONL"
# A path and nothing else; names with blanks are taken for sentences.
_ONLY_NAME = re.compile(rb"\S+\.(jpe?g|png|webp|gif|bmp|tiff?)|", re.IGNORECASE)
_START = 1 << 16
_LINES = 200
_ARRAY_OF_OBJECTS = re.compile(rb":\s*\[\s*\{")
_FILES = 20_000
_PROBES = 50


def lists_of_images(raw: Path) -> list[Path]:
    """Files that name images, as captions or annotations do, and are the sidecars of none.

    Where no image has a text of its stem, files of records count too, which may tell of the images
    by their ids. There are none where images have sidecars, as these are what is meant then.
    """
    found: list[Path] = []
    records: list[Path] = []
    stems: set[str] = set()
    texts: set[str] = set()
    seen = probed = 0
    for place, folders, files in os.walk(raw, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        parts = [(name, *_split(name)) for name in sorted(files) if not name.startswith(".")]
        images = {stem for _, stem, ext in parts if is_image_extension(ext)}
        stems |= images
        for name, stem, ext in parts:
            path = Path(place, name)
            if (ext not in _TEXTS and not kind_of(path)) or is_paper(name):
                continue
            if stem in images:
                return []
            texts.add(stem)
            if probed < _PROBES:
                probed += 1
                if _names_images(path):
                    found.append(path)
                elif _may_be_records(path):
                    records.append(path)
        seen += len(files)
        if seen >= _FILES:
            break
    if stems & texts:  # in parallel folders
        return [path for path in found if _split(path.name)[0] not in stems]
    return found or records


def _may_be_records(path: Path) -> bool:
    """Whether a file holds several records, or an object that holds them in an array."""
    kind = kind_of(path)
    if kind != "json":
        return kind != ""
    start = start_of(path, _START)
    return seems_records(path) or _ARRAY_OF_OBJECTS.search(start) is not None


def only_names_images(path: Path) -> bool:
    """Return whether a text lists files of images and says nothing of them, as split lists do."""
    lines = start_of(path, _START).splitlines()[:_LINES]
    return any(lines) and all(_ONLY_NAME.fullmatch(line.strip()) for line in lines)


def seems_records(path: Path) -> bool:
    """Return whether a JSON file is no sidecar but holds records: an array, lines or COCO."""
    start = start_of(path, _START).lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"["):
        return re.match(rb"\[\s*\{", start) is not None
    return b'"annotations"' in start or b'"images"' in start or b"}\n{" in start


def advice(raw: Path, options: ReadOptions) -> str:
    """What to do with the files of records at `raw`, none of which fits a format; may be empty."""
    try:
        files = [path for level in levels(raw, options.include, _FILES) for path in level]
        if not files and raw.is_file():
            files = [raw]
        return "".join(f"\n{line}" for line in _advice(raw, files[:5]))
    except OSError:
        return ""


def describe(path: Path) -> str:
    """What a file holds, and how it could be read instead."""
    if not kind_of(path):
        return "write it as CSV or JSONL, with a column of image paths and one of texts"
    try:
        records = list(islice(first_records(path), 2))
    except NotRecordsError:
        return _ONE_OBJECT
    except PackError as error:
        return str(error)
    if not records:
        return "it has no record that can be read"
    record = records[0]
    if len(records) == 1 and kind_of(path) == "json" and _is_nested(record):
        return _ONE_OBJECT
    columns = ", ".join(map(repr, list(record)[:12]))
    if any(isinstance(value, str) and "://" in value[:8] for value in record.values()):
        return (
            f"records with {columns}; images that are URLs have to be downloaded first, for "
            "example with img2dataset"
        )
    return f"records with {columns}; name theirs with --image-column and --text-column"


def _is_nested(record: Mapping[str, Any]) -> bool:
    """Whether a record holds others, or no text at all."""
    values = record.values()
    return not any(isinstance(value, str) for value in values) or any(
        isinstance(value, list) and value and isinstance(value[0], Mapping) for value in values
    )


def _advice(raw: Path, files: list[Path]) -> Iterator[str]:
    for path in files:
        said = describe(path)
        if said != _ONE_OBJECT or raw.is_file():  # beside data, these are settings and statistics
            yield f"{_name(raw, path)}: {said}"
    if raw.is_dir() and look_at(raw).counts.get(".arrow"):
        yield "Arrow files of `save_to_disk` are not read; write Parquet with `Dataset.to_parquet`"


def _name(raw: Path, path: Path) -> str:
    return printable(path.name if path == raw else path.relative_to(raw).as_posix())


def _split(name: str) -> tuple[str, str]:
    stem, _, ext = name.rpartition(".")
    return stem, ext.lower()


def _names_images(path: Path) -> bool:
    if _IMAGE_NAME.search(start_of(path, _START)) is None:
        return False
    return kind_of(path) != "" or not only_names_images(path)
