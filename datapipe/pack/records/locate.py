"""Files of a folder that may hold records, list images or be one JSON object, and their groups."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

from datapipe.errors import PackError
from datapipe.index.images.field_names import FILE_FIELDS, IMAGE_FIELDS
from datapipe.pack.input.file_kinds import split_extension
from datapipe.pack.input.raw_sample import ReadOptions, printable
from datapipe.pack.input.survey import Survey
from datapipe.pack.records.streams.containers import estimate_file, first_records, kind_of
from datapipe.pack.records.streams.parquet_records import columns_of
from datapipe.report.table import counted
from datapipe.text.sample_text import TEXT_EXTENSIONS

_LEVELS = 4
_LIST_LEVELS = 3
_QUICK = 100_000
_PROBES = 50
_LISTED = 20
_ROW_NUMBERS = ("id", "idx", "index", "")  # columns whose numbers may count the rows of one table
_WHOLE = 4 << 20  # bytes; of larger files the number of records is an estimate

# How writers number the files of one dataset: Hugging Face, old and new, Spark, Dask, by hand.
_NUMBERED = re.compile(
    r"(?P<prefix>.*?[-_.])?\d+"
    r"(-of-(?P<total>\d+)(-[0-9a-f]+)?|-[0-9a-f]{8}-[0-9a-f-]{27}.*)?(?P<ext>\.parquet)"
)


@dataclass(frozen=True, kw_only=True)
class RecordGroup:
    """Files that belong together."""

    pattern: str  # what `--include` would take for them
    files: tuple[Path, ...]  # in order
    total: int | None = None  # how many files there should be, None where their names do not say

    @property
    def is_parquet(self) -> bool:
        return kind_of(self.files[0]) == "parquet"


def levels(survey: Survey, include: str | None, most: int | None = None) -> Iterator[list[Path]]:
    """Yield files that may hold records, by depth; those of `include` as one; may raise OSError."""
    raw = survey.raw
    if survey.is_file:
        if kind_of(raw) and (include is None or fnmatch.fnmatchcase(raw.name, include)):
            yield [raw]
        return
    found = (
        [Path(listing.folder, name) for listing in level for name in listing.records]
        for level in survey.levels(most)
    )
    if include is None:
        yield from islice(found, _LEVELS)
    else:
        yield [path for level in found for path in level if _matches(raw, path, include)]


def _matches(raw: Path, path: Path, include: str | None) -> bool:
    return include is None or fnmatch.fnmatchcase(path.relative_to(raw).as_posix(), include)


def groups_of(raw: Path, files: list[Path]) -> list[RecordGroup]:
    """Group the Parquet files of a folder that are numbered alike; other files are alone."""
    together: dict[tuple[str, int | None], list[Path]] = {}
    for path in files:
        name = path.name if path == raw else path.relative_to(raw).as_posix()
        folder, slash, last = name.rpartition("/")
        total = None
        if match := _NUMBERED.fullmatch(last):
            total = int(match["total"]) if match["total"] else None
            pattern = glob.escape(match["prefix"] or "") + "*"
            pattern += f"-of-{match['total']}*.parquet" if total else ".parquet"
        else:
            pattern = glob.escape(last)
        together.setdefault((glob.escape(folder) + slash + pattern, total), []).append(path)
    return [
        RecordGroup(pattern=pattern, files=tuple(group), total=total)
        for (pattern, total), group in together.items()
    ]


def name_below(raw: Path, path: Path) -> str:
    return printable(path.name if path == raw else path.relative_to(raw).as_posix())


def require_one(
    raw: Path, include: str | None, groups: list[RecordGroup], others: Sequence[str] = ()
) -> None:
    """Refuse files that are not plainly one dataset.

    `groups` are files whose records fit, `others` descriptions of those that do not.
    """
    if include is not None and others:
        raise PackError(
            f"--include {include!r} also takes files of another kind "
            f"({'; '.join(others[:3])}); narrow it"
        )
    if include is None and len(groups) > 1:
        parquet = any(group.is_parquet for group in groups)
        what = "several datasets, or splits of one" if parquet else "several annotation files"
        first = next((g for g in groups if "train" in g.pattern.lower()), groups[0])
        width = max(len(repr(group.pattern)) for group in groups[:_LISTED])
        lines = [f"\n  --include {g.pattern!r:<{width}}  {_extent(g)}" for g in groups[:_LISTED]]
        if len(groups) > _LISTED:
            lines.append(f"\n  and {len(groups) - _LISTED} more")
        raise PackError(
            f"{raw} holds {what}:{''.join(lines)}\n"
            f"take several of one kind with a pattern such as {_common_pattern(raw, groups)!r}, "
            f"or choose one with --include {first.pattern!r}"
            + (join_hint(*(group.files[0] for group in groups)) if len(groups) == 2 else "")
        )
    for group in groups if include is None else ():
        if group.total is not None and len(group.files) < group.total:
            raise PackError(
                f"{raw}: of {group.pattern} only {len(group.files)} of {group.total} files are "
                f"here; fetch the others, or take these with --include {group.pattern!r}"
            )
    _require_equal_columns([p for g in groups if g.is_parquet for p in g.files])


def join_hint(one: Path, other: Path) -> str:
    """Return advice to join two tables that have one column of equal ids, and others; else ""."""
    try:
        tables = [list(first_records(path)) for path in (one, other)]
    except PackError:
        return ""
    if not all(records and len(records[0]) > 1 for records in tables):
        return ""
    firsts, seconds = (_ids_in(records) for records in tables)
    pairs = [
        sorted((first, second), key=len, reverse=True)  # the texts' column says whose id it is
        for first, second in product(firsts, seconds)
        if _may_join(first, second, firsts[first] & seconds[second])
    ]
    if len(pairs) != 1:
        return ""
    (ours, theirs), *_ = pairs
    key = ours if ours == theirs else f"{ours}={theirs}"
    return (
        f"; if the two tables complete each other by {key!r}, add --join {key!r} (see "
        "docs/formats.md#images-in-one-table-texts-in-another)"
    )


def _ids_in(records: list[dict[str, Any]]) -> dict[str, set[str]]:
    names = records[0].keys() - IMAGE_FIELDS - FILE_FIELDS
    return {
        name: {str(record[name]) for record in records if isinstance(record.get(name), str | int)}
        for name in names
    }


def _may_join(first: str, second: str, shared: set[str]) -> bool:
    """Return whether columns with these values in common join two tables, as `imageId` and `id`."""
    short, long = sorted((first.lower(), second.lower()), key=len)
    counts_rows = {short, long} <= set(_ROW_NUMBERS) and all(map(str.isdecimal, shared))
    is_named = first == second or (short == "id" and long.endswith("id"))
    return bool(shared) and is_named and not counts_rows


def _common_pattern(raw: Path, groups: list[RecordGroup]) -> str:
    """Return a pattern of all files with the extension of the first in the folder of all."""
    files = [group.files[0] for group in groups]
    folder = Path(os.path.commonpath([file.parent for file in files])).relative_to(raw).as_posix()
    return ("" if folder == "." else f"{glob.escape(folder)}/") + f"*{files[0].suffix}"


def _extent(group: RecordGroup) -> str:
    files = counted(len(group.files), "file")
    try:
        count = sum(map(estimate_file, group.files))
    except PackError as error:
        return f"{files}, which cannot be read: {error}"
    exact = group.is_parquet or all(path.stat().st_size <= _WHOLE for path in group.files)
    return f"{'' if exact else 'about '}{counted(count, 'record')} in {files}"


def _require_equal_columns(files: list[Path]) -> None:
    """Refuse Parquet files that differ in columns; a column of nulls alone matches any type."""
    expected: dict[str, str] = {}
    for path in files:
        columns = columns_of(path)
        expected = expected or columns
        if expected.keys() != columns.keys():
            differing = sorted(expected.keys() ^ columns.keys())
        else:
            differing = [
                f"{name} ({expected[name]}, {kind})"
                for name, kind in columns.items()
                if "null" not in (kind, expected[name]) and kind != expected[name]
            ]
        if differing:
            raise PackError(
                f"{files[0].name} and {path.name} differ in columns: {', '.join(differing)}; "
                "take those that are one dataset with --include PATTERN"
            )
        expected = {n: columns[n] if kind == "null" else kind for n, kind in expected.items()}


_LIST_EXTENSIONS = frozenset({"txt", "text", "token", "tokens", "lst", "list", "csv", "tsv"})


def list_files(survey: Survey, include: str | None) -> Iterator[list[Path]]:
    """Yield the files that may list images, by depth below the path, each level in order.

    There are none where images have texts of the same stem beside them, as these are meant then.
    Paths below a folder must match `include`.
    """
    raw = survey.raw
    if survey.is_file:
        if split_extension(raw.name)[1] in _LIST_EXTENSIONS:
            yield [raw]
        return
    found: list[list[Path]] = []
    for level in islice(survey.levels(_QUICK), _LIST_LEVELS):
        paths: list[Path] = []
        for listing in level:
            parts = [(name, *split_extension(name)) for name in listing.files]
            lists = [part for part in parts if part[2] in _LIST_EXTENSIONS]
            images = {split_extension(name)[0] for name in listing.images} if lists else set()
            if any(stem in images and ext in TEXT_EXTENSIONS for _, stem, ext in lists):
                return
            paths += [Path(listing.folder, name) for name, stem, _ in lists if stem not in images]
        found.append([path for path in paths if _matches(raw, path, include)])
    yield from found


LOOK = 1 << 20
"""Bytes of a file that tell its format."""


def find_objects(survey: Survey, options: ReadOptions, fits: Callable[[Path], Any]) -> list[Path]:
    """Return the files nearest to the path whose start fits, in order; quick, never raises."""
    with suppress(OSError):
        for level in levels(survey, options.include, _QUICK):
            files = [path for path in level if path.suffix.lower() == ".json"]
            if fitting := [path for path in files[:_PROBES] if survey.look(fits, path)]:
                return fitting
    return []


def only_one(raw: Path, found: list[Path], what: str, absent: str = "") -> Path:
    """Return the only file that was found; PackError (`absent`) if there is none, or several."""
    if not found:
        absent = absent or f"no .json file here holds {what}; give the file itself"
        raise PackError(f"{raw}: {absent}")
    if len(found) > 1:
        names = ", ".join(name_below(raw, path) for path in found[:10])
        raise PackError(
            f"{raw} holds several files of {what} ({names}); give one of them, or name it with "
            "--include, and pack the others with --append"
        )
    return found[0]
