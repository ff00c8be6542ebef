"""Files that a person means by a dataset and that no reader takes: errors that name a remedy."""

from __future__ import annotations

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from datapipe.errors import PackError, SampleError
from datapipe.index.ignore import ignored_by
from datapipe.index.images.header import is_image_extension
from datapipe.index.media import is_text
from datapipe.pack.input.file_kinds import is_paper, medium_of
from datapipe.pack.input.listing import kind_of_name, split_extension, start_of
from datapipe.pack.input.raw_sample import RawSample, ReadOptions, Reject, printable
from datapipe.pack.input.survey import Survey
from datapipe.pack.records.fields.refusals import longest, prose
from datapipe.pack.records.images.templates import named_by
from datapipe.pack.records.locate import levels, name_below
from datapipe.pack.records.streams.containers import first_records, kind_of, not_utf8
from datapipe.pack.records.streams.json_stream import NotRecordsError, is_columnar, small_object
from datapipe.pack.teaching import fields_with_text, show
from datapipe.text.conversation import has_words

_IMAGE_NAME = re.compile(rb"[^\s\"'/]\.(jpe?g|png|webp|gif|bmp|tiff?)\b", re.IGNORECASE)
_ONE_OBJECT = "it is one JSON object; write it as an array of records, or as JSONL"
# A path and nothing else; names with blanks are taken for sentences.
_ONLY_NAME = re.compile(rb"\S+\.(jpe?g|png|webp|gif|bmp|tiff?)|", re.IGNORECASE)
START_OF_TEXT = 1 << 16
"""Bytes of a text that tell what it holds."""
_LINES = 200
_ARRAY_OF_OBJECTS = re.compile(rb":\s*\[\s*\{")
_INPUTS = 5000  # of a folder, among which samples with text are looked for
_READ = 20  # of these are read
_FILES = 200_000
_PROBES = 50
_OF_A_KIND = 3  # files of one folder and extension that are looked into
_COLUMNS = 12
_TABLES = frozenset({"xlsx", "xls", "ods", "pkl", "pickle", "feather", "sqlite", "h5", "hdf5"})
_FOLDERS = 10_000


def refuse_textless(
    survey: Survey, samples: Iterable[RawSample | Reject], ignore: Sequence[str] = ()
) -> None:
    """Refuse a folder with texts and images where no image has a text.

    Nothing is refused where one of the first `samples` has a text: then sidecars are what is meant.
    """
    raw = survey.raw
    unread: dict[str, Any] = {}
    first = (sample for sample in islice(samples, _INPUTS) if isinstance(sample, RawSample))
    texted = (sample for sample in first if (sample.caption, sample.record) != (None, None))
    for sample in islice(texted, _READ):
        try:
            if any(has_words(text) for _, text, _ in show(sample).turns):
                return
            unread |= fields_with_text(sample)
        except SampleError:
            return  # there is a text, and packing says what is wrong with it
    alone = "pack the images alone with --format folder"
    mapped = ""
    if unread:
        texts = {name: value for name, value in unread.items() if isinstance(value, str)}
        example = max(texts, key=lambda name: len(texts[name]), default="FIELD")
        mapped = f"--format folder --map {shlex.quote(f'caption={example}')}"
        alone = "pack the images and their JSON as they are with --format folder"
    fields = ", ".join(map(repr, unread))
    if lists := _texts_of_none(survey, ignore):
        name = printable(lists[0].relative_to(raw).as_posix())
        name += f" (and {len(lists) - 1} more)" if len(lists) > 1 else ""
        beside = f"; or take a field of the JSON beside the images ({fields}): {mapped}"
        raise PackError(
            f"{raw} holds images, and {name} names images or tells of them but no format reads it: "
            f"{describe(lists[0], survey)}{beside if unread else ''}; or {alone}"
        )
    if unread:
        raise PackError(
            f"{raw} holds images with JSON, and no field of it is known as text; its fields "
            f"with text are {fields}. Say what is what, such as {mapped}, or {alone}"
        )


def _texts_of_none(survey: Survey, ignore: Sequence[str]) -> list[Path]:
    """Return files that may be the texts of the images of a survey, though no reader takes them.

    These are texts of images' stems; else files that name images or hold records; else texts with
    about as many lines as there are images; else tables.
    """
    stems: set[str] = set()
    files: dict[tuple[str, str], list[Path]] = defaultdict(list)
    tables: list[Path] = []
    images = 0
    for listing in survey.walk(most=_FILES):
        for name in listing.files:
            there = f"{listing.folder}/{name}"
            stem, ext = split_extension(name)
            if ignore and ignored_by(survey.below(there), ignore):
                continue
            if is_image_extension(ext):
                images += 1
                stems |= {stem, name}
            elif ext in _TABLES:
                tables.append(Path(there))
            elif not is_paper(name) and (kind_of_name(name) or not medium_of(name)):
                files[listing.folder, ext].append(Path(there))
    if ignore and not images:
        return []
    # JSON of an image's stem was read as its sidecar, and texts too unless they are elsewhere.
    alike = [
        [path for path in paths if ext != "json" or path.stem not in stems]
        for (_, ext), paths in files.items()
    ]
    naming, records = [], []
    worded: list[tuple[list[Path], list[Path]]] = []  # texts, and those of the same kind
    for paths in alike[:_PROBES]:
        texts = []
        for path in paths[:_OF_A_KIND]:
            start, kind = start_of(path, START_OF_TEXT), kind_of(path)
            # Records in another encoding are to be named too.
            if not start.strip() or not (kind or (is_text(start) and not are_names_alone(start))):
                continue
            if _IMAGE_NAME.search(start):
                naming.append(path)
            elif kind and (
                kind != "json" or seems_records(path) or _ARRAY_OF_OBJECTS.search(start)
            ):
                records.append(path)
            elif _has_words(start, stems):
                texts.append(path)
        if texts:
            worded.append((texts, paths))
    for texts, paths in worded:
        if all(path.stem in stems for path in texts):
            return paths
    if naming or records:
        return naming or records
    for texts, paths in worded:
        lines = sum(map(_count_lines, texts)) * len(paths) / len(texts)
        if lines >= 2 and lines * 2 >= images:
            return paths
    return tables


def _has_words(start: bytes, stems: set[str]) -> bool:
    """Return whether a text says something: more than numbers, and than which images there are."""
    lines = start.decode(errors="replace").splitlines()[:_LINES]
    words = (word for line in lines for word in line.split())
    return any(any(map(str.isalpha, w)) and w.rpartition("/")[2] not in stems for w in words)


def _count_lines(path: Path) -> float:
    """Estimate how many lines a text has, by its start; of JSON, how many objects are in it."""
    start = start_of(path, START_OF_TEXT)
    lines = sum(1 for line in start.splitlines() if line.strip())
    if kind_of(path) == "json":
        lines = max(start.count(b"{") - 1, 1)
    return lines * path.stat().st_size / max(len(start), 1)


def are_names_alone(start: bytes) -> bool:
    """Return whether a text is nothing but names of images, as split lists are; by its start."""
    lines = start.splitlines()[:_LINES]
    return any(lines) and all(_ONLY_NAME.fullmatch(line.strip()) for line in lines)


def seems_records(path: Path) -> bool:
    """Return whether a JSON file is no sidecar but holds records: an array, lines or COCO."""
    start = start_of(path, START_OF_TEXT).lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"["):
        return re.match(rb"\[\s*\{", start) is not None
    return b'"annotations"' in start or b'"images"' in start or b"}\n{" in start


def advice(survey: Survey, options: ReadOptions) -> str:
    """Return what to do with files of records that fit no format; may be empty."""
    said = ""
    try:
        files = [path for level in levels(survey, options.include, 20_000) for path in level]
        if not files and survey.is_file:
            files = [survey.raw]
        for path in files[:5]:
            description = describe(path, survey)
            # Beside data, objects are settings and statistics.
            if description != _ONE_OBJECT or survey.is_file:
                said += f"\n{name_below(survey.raw, path)}: {description}"
    except OSError:
        return ""
    return said


def describe(path: Path, survey: Survey) -> str:
    """Return what a file of a survey holds, and how it could be read instead."""
    if not kind_of(path):
        return _describe_text(path, survey)
    try:
        records = list(islice(first_records(path), _READ))
        fault = "" if records else not_utf8(path) or "it has no record that can be read"
    except NotRecordsError:
        return _ONE_OBJECT + _wrapped(path)
    except PackError as error:
        return str(error)
    if fault:
        return fault
    record = records[0]
    if len(records) == 1 and kind_of(path) == "json" and _is_nested(record):
        return _ONE_OBJECT + _wrapped(path)
    columns = f"records with {', '.join(map(repr, list(record)[:_COLUMNS]))}; "
    if any(isinstance(value, str) and "://" in value[:8] for value in record.values()):
        return f"{columns}download images that are URLs first, for example with img2dataset"
    values = {name: [r[name] for r in records if r.get(name) is not None] for name in record}
    if survey.is_folder and (template := named_by(survey.raw, values)):
        texts = prose(values)
        return (
            f"{columns}give --include {shlex.quote(path.relative_to(survey.raw).as_posix())} "
            f"--format table --image-column {shlex.quote(template)} "
            f"--text-column {shlex.quote(longest(texts, values)) if texts else 'COLUMN'}"
        )
    return f"{columns}name theirs with --image-column and --text-column"


def _describe_text(path: Path, survey: Survey) -> str:
    def names_it(name: str) -> bool:
        return split_extension(name)[0] == path.stem

    if any(map(names_it, survey.listing(os.fspath(path.parent)).images)):
        return "it is beside an image of its name; call it .txt, and it is this image's text"
    folders = islice(survey.walk(), _FOLDERS)
    if any(names_it(name) for listing in folders for name in listing.images):
        return (
            "it has an image's name in another folder; texts are found beside the images, or "
            "in a folder whose path differs from theirs in one name, as images/a and texts/a do"
        )
    if split_extension(path.name)[1] in _TABLES:
        return "its format is not read; write it as CSV, JSONL or Parquet"
    return "write it as CSV or JSONL, with a column of image paths and one of texts"


def _wrapped(path: Path) -> str:
    """Return how to take the records out of one JSON object; "" if it holds none."""
    held = small_object(path) if path.suffix.lower() == ".json" else {}
    lists = {name: value for name, value in held.items() if isinstance(value, list) and value}
    inner = {name: len(value) for name, value in lists.items() if _are_objects(value)}
    name = max(inner, key=lambda key: inner[key], default="")
    target = path.with_suffix(".jsonl")
    if inner.get(name, 0) > 1:
        said = f"it holds records in {', '.join(f'{n!r}: {c:,}' for n, c in inner.items())}"
        rows = "json.load(open(sys.argv[1]))[sys.argv[2]]"
        target = path.with_name(f"{path.stem}-{name}.jsonl")
    elif is_columnar(held):
        said = f"its columns are {', '.join(map(repr, held))}"
        rows = (
            "(lambda d: [dict(zip(d, r)) for r in zip(*(v if isinstance(v, list) else v.values() "
            "for v in d.values()))])(json.load(open(sys.argv[1])))"
        )
    elif len(held) > 1 and _are_objects(held.values()):
        said = f"it holds {len(held):,} records by their keys"
        rows = '[{"key": k, **v} for k, v in json.load(open(sys.argv[1])).items()]'
    else:
        return ""
    code = f"import json,sys; [print(json.dumps(r)) for r in {rows}]"
    command = shlex.join(["python3", "-c", code, str(path), *([name] if name else [])])
    return f" ({said}), such as `{command} > {shlex.quote(str(target))}`"


def _are_objects(values: Iterable[Any]) -> bool:
    return all(isinstance(value, dict) for value in values)


def _is_nested(record: Mapping[str, Any]) -> bool:
    """Return whether a record holds others, or no text at all."""
    values = record.values()
    return not any(isinstance(value, str) for value in values) or any(
        isinstance(value, list) and value and isinstance(value[0], Mapping) for value in values
    )
