"""Data that no reader takes: errors that say what it is, and how it could be packed."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from datapipe.errors import PackError
from datapipe.index.images.header import is_image_extension
from datapipe.index.manifest import MANIFEST, read_manifest
from datapipe.pack.input.archives import packed_images
from datapipe.pack.input.file_kinds import TABLES, is_paper, medium_of, split_extension
from datapipe.pack.input.listing import Listing
from datapipe.pack.input.raw_sample import ReadOptions
from datapipe.pack.input.survey import Survey
from datapipe.pack.readers import all_readers, list_formats
from datapipe.pack.recognition.other_stores import other_library
from datapipe.pack.records.fields.field_map import parse_map
from datapipe.pack.records.fields.field_path import parse_source
from datapipe.pack.records.fields.refusals import listed, longest, prose
from datapipe.pack.records.images.fields import is_image
from datapipe.pack.records.images.templates import named_by
from datapipe.pack.records.locate import levels, name_below
from datapipe.pack.records.streams.containers import first_records, kind_of, not_utf8
from datapipe.pack.records.streams.json_stream import NotRecordsError, is_columnar, small_object
from datapipe.text.videos import frames_remedy

_ONE_OBJECT = "it is one JSON object; write it as an array of records, or as JSONL"
_READ = 20  # records
_BELOW = 20  # folders that are looked at, of those just below
_COLUMNS = 12
_FOLDERS = 10_000


def unrecognized(survey: Survey, listings: Iterable[Listing], options: ReadOptions) -> PackError:
    """Return the error about a survey, by its folders, that no reader recognises."""
    raw = survey.raw
    if survey.is_file and is_image_extension(raw.suffix[1:]):
        home = shlex.quote(str(raw.parent))
        return PackError(
            f"{raw} is one image; give the folder that holds it: datapipe pack {home} OUT"
        )
    files = [Path(path) for listing in listings for path in listing.paths()]
    files += [raw] if survey.is_file else []
    if not files:
        return PackError(_empty(survey))
    alone = _of_one_medium(survey, files)
    below = _below(survey, options)
    packed = f"\n{said}" if (said := packed_images(survey.top.paths())) else ""
    if not (packed or below):
        if found := other_library(files):
            return PackError(f"{raw} holds {found}\nThen pack the folder `raw`.")
        if alone:
            return PackError(alone)
    if absent := _absent_fields(survey, options):
        return PackError(f"{raw}: {absent}")
    media = set(map(medium_of, survey.extensions))
    remedy = "" if options.videos else "".join(map(frames_remedy, media))
    return PackError(
        f"{raw}: no known format is recognised (found: {survey.describe()}){remedy}; the "
        f"formats are\n{list_formats()}{_advice(survey, options)}{packed}{below}"
    )


def _empty(survey: Survey) -> str:
    raw = survey.raw
    if (raw / MANIFEST).is_file() and read_manifest(raw).is_view:
        new = f"datapipe select {shlex.quote(str(raw))} NEW"
        return f"{raw} is a view of other datasets; to copy its samples into shards, run: {new}"
    remedy = "give the folder that holds the images and texts"
    hidden = next((p for p in raw.rglob(".*") if p.is_file()), None)
    if hidden is not None:
        return f"{raw} has only hidden files, such as {hidden.name}, which are not read; {remedy}"
    folders = ": its folders hold no files" if survey.top.folders else ""
    return f"{raw} is empty{folders}; {remedy}"


def _below(survey: Survey, options: ReadOptions) -> str:
    """Return what folders just below look like, where something is recognised in them."""
    said = ""
    for folder in survey.top.folders[:_BELOW]:
        inner = survey.inside(folder)
        if names := [name for name, r in all_readers().items() if r.recognises(inner, options)]:
            said += f"\n{inner.raw} looks like {' or '.join(names)}: give that folder"
    return said


def _of_one_medium(survey: Survey, files: Sequence[Path]) -> str:
    """Return what files are that all hold one medium, beside papers; "" for others."""
    data = [path for path in files if not is_paper(path.name)]
    media = Counter(medium_of(path.name) for path in data)
    if len(media) != 1 or not (medium := next(iter(media))) or medium == "an archive":
        return ""
    name, raw = data[0].name, survey.raw
    packed = f"only images and text are packed{frames_remedy(medium)}"
    if survey.is_file:
        return f"{raw} is {medium}; {packed}"
    held = f"{len(data):,} files, each" if len(data) > 1 else "one file,"
    return f"{raw} holds {held} {medium} ({name}); {packed}"


def _absent_fields(survey: Survey, options: ReadOptions) -> str:
    """Return that records have none of the fields that the user named; "" if they have one."""
    columns = (options.image_column, options.text_column)
    sources = [] if options.map is None else parse_map(options.map).sources
    with suppress(PackError):  # a column may be called so
        sources = [*sources, *(parse_source(name) for name in columns if name)]
    sources = [source for source in sources if source.fields]
    held: dict[str, None] = {}
    with suppress(PackError, OSError):
        for path in filter(kind_of, _record_files(survey, options)):
            for record in islice(first_records(path), _READ):
                held |= dict.fromkeys(record)
    if not held or not sources or any(name in held for each in sources for name in each.fields):
        return ""
    near = [name for each in sources for name in get_close_matches(each.label, held, 1)]
    instead = f"did you mean {listed(near)}?" if near else "name one that they have"
    return f"no record has {listed(map(str, sources))}; {instead} (all fields: {listed(held)})"


def _record_files(survey: Survey, options: ReadOptions) -> list[Path]:
    """Return the first files that may hold records."""
    files = [path for level in levels(survey, options.include, 20_000) for path in level]
    return files[:5] or [survey.raw] * survey.is_file


def _advice(survey: Survey, options: ReadOptions) -> str:
    """Return what to do with files of records that fit no format; may be empty."""
    said = ""
    try:
        for path in _record_files(survey, options):
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
    if len(records) == 1 and kind_of(path) == "json" and _holds_others(record):
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
    if split_extension(path.name)[1] in TABLES:
        return "its format is not read; write it as CSV, JSONL or Parquet"
    return "write it as CSV or JSONL, with a column of image paths and one of texts"


def _wrapped(path: Path) -> str:
    """Return how to take the records out of one JSON object; "" if it holds none."""
    held = small_object(path) if path.suffix.lower() == ".json" else {}
    lists = {name: value for name, value in held.items() if isinstance(value, list) and value}
    inner = {name: len(value) for name, value in lists.items() if _are_objects(value)}
    name = max((key for key in inner if inner[key] > 1), key=inner.__getitem__, default="")
    # Of MIMIC-IT, whose `data` are records by their keys, beside a `meta`.
    keyed = [n for n, v in held.items() if isinstance(v, dict) and v and _are_objects(v.values())]
    by_key = '[{"key": k, **v} for k, v in json.load(open(sys.argv[1]))%s.items()]'
    if name:
        said = f"it holds records in {', '.join(f'{n!r}: {c:,}' for n, c in inner.items())}"
        rows = "json.load(open(sys.argv[1]))[sys.argv[2]]"
    elif is_columnar(held):
        said = f"its columns are {', '.join(map(repr, held))}"
        rows = (
            "(lambda d: [dict(zip(d, r)) for r in zip(*(v if isinstance(v, list) else v.values() "
            "for v in d.values()))])(json.load(open(sys.argv[1])))"
        )
    elif len(keyed) == 1:
        (name,) = keyed
        said = f"it holds {len(held[name]):,} records by their keys in {name!r}"
        rows = by_key % "[sys.argv[2]]"
    elif len(held) > 1 and _are_objects(held.values()):
        said = f"it holds {len(held):,} records by their keys"
        rows = by_key % ""
    elif len(held) > 1 and all(map(is_image, held.values())):
        said = f"it holds {len(held):,} images by their keys"
        rows = by_key.replace("**v", '"image": v') % ""
    else:
        return ""
    target = path.with_name(f"{path.stem}-{name}.jsonl" if name else f"{path.stem}.jsonl")
    code = f"import json,sys; [print(json.dumps(r)) for r in {rows}]"
    command = shlex.join(["python3", "-c", code, str(path), *([name] if name else [])])
    return f" ({said}), such as `{command} > {shlex.quote(str(target))}`"


def _are_objects(values: Iterable[Any]) -> bool:
    return all(isinstance(value, dict) for value in values)


def _holds_others(record: Mapping[str, Any]) -> bool:
    """Return whether a record holds others, images by their keys, or no text at all."""
    values = record.values()
    return (
        not any(isinstance(value, str) for value in values)
        or any(
            isinstance(value, list) and value and isinstance(value[0], Mapping) for value in values
        )
        or (len(values) > 1 and all(map(is_image, values)))
    )
