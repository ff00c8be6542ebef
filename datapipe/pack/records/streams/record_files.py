"""Records out of the files that hold them: JSON arrays, JSONL, CSV, TSV, Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from datapipe.errors import DecodeError, MissingMember, PackError
from datapipe.pack.input.raw_sample import InlineBlob, ReadOptions, Reject
from datapipe.pack.input.survey import Survey
from datapipe.pack.records.fields.field_map import parse_map
from datapipe.pack.records.fields.field_path import parse_list, parse_source
from datapipe.pack.records.images.fields import is_image_struct, may_be_path, names_in
from datapipe.pack.records.images.roots import PROBED, Images, find_images
from datapipe.pack.records.locate import RecordGroup, groups_of, levels, name_below, require_one
from datapipe.pack.records.streams import containers
from datapipe.pack.records.streams.json_stream import NotRecordsError
from datapipe.text.image_marks import paths_in

Fits = Callable[[Mapping[str, Any]], bool]

_QUICK = 100_000
_PROBES = 100
# Deeper records Python could neither send to a worker nor write: both run out of stack.
_DEEPEST = 200
_SCALARS = frozenset({str, int, float, bool})


@dataclass(frozen=True, kw_only=True)
class RecordFiles:
    """Files whose records are one dataset."""

    raw: Path  # the file or folder that the user named; sources are relative to it
    files: tuple[Path, ...]  # in order
    images: Images  # where their images are; of files in several folders, see `parts`
    # The files of each folder by themselves, if their images are looked for there
    folders: tuple[RecordFiles, ...] = ()

    def parts(self) -> tuple[RecordFiles, ...]:
        """Return the files of each folder whose images are looked for by themselves."""
        return self.folders or (self,)

    def estimate(self) -> int:
        """Estimate how many records there are: exactly for Parquet, after a sample for others."""
        return sum(map(containers.estimate_file, self.files))

    def read(self, *, as_text: bool = False) -> Iterator[tuple[str, Any]]:
        """Yield every record with its source, such as `data.jsonl#17`, counted from 0 in a file.

        A record is an object or a `Reject`; with `as_text`, those of JSON come as their `JsonText`.
        """
        for path in self.files:
            yield from containers.read_file(path, name_below(self.raw, path), as_text=as_text)

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any] | Reject]]:
        return self.read()


def find_records(survey: Survey, options: ReadOptions, fits: Fits) -> tuple[Path, ...]:
    """Return the files whose first record fits; must be quick and not raise."""
    with suppress(PackError, OSError):
        for level in levels(survey, options.include, _QUICK):
            fitting: list[Path] = []
            for group in groups_of(survey.raw, level)[:_PROBES]:
                with suppress(PackError):
                    record = first_of(survey, group.files)
                    if record is not None and fits(record):
                        fitting += group.files
            if fitting:
                return tuple(fitting)
    return ()


def is_unreadable(survey: Survey, options: ReadOptions) -> bool:
    """Return whether every file of records is damaged."""
    try:
        paths = [p for level in levels(survey, options.include, _QUICK) for p in level[:_PROBES]]
    except OSError:
        return False
    if survey.is_folder:  # other damaged files may be beside data of any kind
        paths = [path for path in paths if containers.kind_of(path) == "parquet"]
    return bool(paths) and all(map(containers.cannot_be_read, paths))


def open_records(survey: Survey, options: ReadOptions, fits: Fits, what: str) -> RecordFiles:
    """Return the files whose records fit, for reading; PackError if none or several do.

    Of a folder, the files nearest to it count: those below are looked at only where none fits
    beside them. With `options.include`, all that match are taken. `what` a record must have is said
    in messages.
    """
    raw = survey.raw
    # Records of a JSON file may differ: those of a file that was named are judged one by one.
    judged_singly = survey.is_file and containers.kind_of(raw) == "json"
    seen: list[str] = []
    for level in levels(survey, options.include):
        fitting, others = [], []
        for group in groups_of(raw, level):
            try:
                record = first_of(survey, group.files)
            except PackError as error:
                if survey.is_file or group.is_parquet:  # which of many is damaged has to be said
                    raise
                one_object = isinstance(error, NotRecordsError)
                others.append(f"{group.pattern}: {'one JSON object' if one_object else error}")
                continue
            if judged_singly or (record is not None and fits(record)):
                fitting.append(group)
            elif record is None:
                fault = containers.not_utf8(group.files[0]) or "no record that can be read"
                others.append(f"{group.pattern}: {fault}")
            else:
                fields = ", ".join(map(repr, list(record)[:12]))
                others.append(f"{group.pattern}: records with {fields}")
        if fitting:
            require_one(raw, options.include, fitting, others)
            return with_images(raw, options, fitting)
        seen += others
    matching = f" that matches --include {options.include!r}" if options.include else ""
    raise PackError(
        f"{raw}: no JSON, JSONL, CSV, TSV or Parquet file here{matching} holds records with "
        f"{what} (found: {'; '.join(seen[:5]) or survey.describe()}); give the file itself"
    )


def key_of_record(record: Mapping[str, Any], key_from: str | None) -> str:
    """Return the value of the field that `--key-from` names, or ""; MissingMember if not there."""
    if key_from is None:
        return ""
    value = record.get(key_from)
    if isinstance(value, str | int | float | Decimal | date) and value != "":
        return str(value)
    fault = "is missing" if value is None or value == "" else f"is a {type(value).__name__}"
    raise MissingMember(f"`{key_from}`, which the key is taken from, {fault}")


def plain(record: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[tuple[str, InlineBlob], ...]]:
    """Return a copy of a record as JSON has it, and the bytes that JSON does not have.

    Structs of `bytes` and `path` become their path, other bytes null, and both a member
    `FIELD.bin`. Dates, times and decimals become text, tuples and arrays lists.
    """
    others: list[tuple[str, InlineBlob]] = []
    out: dict[str, Any] = {}
    for name, value in record.items():
        kept: list[bytes] = []
        try:
            out[str(name)] = _plain(value, kept)
        except RecursionError as error:
            raise DecodeError("record is nested too deeply to be written as JSON") from error
        others += [(f"{name}.bin", InlineBlob(data, str(name))) for data in kept]
    return out, tuple(others)


def _plain(value: Any, kept: list[bytes], left: int = _DEEPEST) -> Any:
    if not left:
        raise RecursionError
    kind = type(value)
    if value is None or kind in _SCALARS:
        return value
    if kind is list or kind is tuple:
        return [_plain(item, kept, left - 1) for item in value]
    if isinstance(value, Mapping):
        data = value.get("bytes")
        if is_image_struct(value) and isinstance(data, bytes | bytearray | memoryview | None):
            kept += [] if data is None else [bytes(data)]
            return _plain(value.get("path"), kept, left - 1)
        return {str(key): _plain(item, kept, left - 1) for key, item in value.items()}
    if isinstance(value, bytes | bytearray | memoryview):
        kept.append(bytes(value))
        return None
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy
        return _plain(value.tolist(), kept, left - 1)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def first_of(survey: Survey, files: tuple[Path, ...]) -> dict[str, Any] | None:
    """Return the first record of several files that can be read."""
    records = (survey.look(containers.first_record, path) for path in files)
    return next((record for record in records if record is not None), None)


def _first_paths(path: Path, options: ReadOptions) -> Iterator[str]:
    """Yield paths of images in the first records, if these do not hold their images.

    With `options.videos`, paths of videos too. If options name the images, only these count.
    """
    named = parse_map(options.map).images if options.map is not None else ()
    with suppress(PackError):  # a column may be called so
        named = (parse_source(options.image_column),) if options.image_column else named
    for record in containers.first_records(path):
        if named:
            record = {source.label: source.probe(record) for source in named}
        values = [
            v for value in record.values() for v in (value if isinstance(value, list) else [value])
        ]
        held = (v.get("bytes") if is_image_struct(v) else v for v in values)
        if any(isinstance(v, bytes) for v in held):
            return
        with suppress(RecursionError):  # will be rejected
            yield from list(islice(_image_paths(record, options.videos), PROBED))


def with_images(raw: Path, options: ReadOptions, groups: list[RecordGroup]) -> RecordFiles:
    """Find the images of the files of each folder by themselves, unless their root is given."""
    files = tuple(path for group in groups for path in group.files)
    parts = []
    for _, together in groupby(files, lambda path: options.image_root or path.parent):
        alike = tuple(together)
        paths = islice(_first_paths(alike[0], options), PROBED)
        images = find_images(alike[0], raw, options, paths, required=False)
        parts.append(RecordFiles(raw=raw, files=alike, images=images))
    return parts[0] if len(parts) == 1 else replace(parts[0], files=files, folders=tuple(parts))


def _image_paths(value: Any, videos: bool) -> Iterator[str]:
    if isinstance(value, str):
        names = (*names_in(value), *paths_in(value))
        yield from (name for name in names if may_be_path(name, videos=videos))
        value = parse_list(value)  # the turns in a cell of a CSV
    if isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _image_paths(item, videos)
