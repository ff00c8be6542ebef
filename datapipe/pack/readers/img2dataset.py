"""Output of img2dataset: shards of downloaded images, each with a table of all that it tried.

Source of the layout: https://github.com/rom1504/img2dataset, `writer.py` and `downloader.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from datapipe.errors import DecodeError, PackError, SampleError, StoreError
from datapipe.index.ignore import ignored_by, parse_ignore, why_ignored
from datapipe.index.media import START
from datapipe.index.members import member_kind
from datapipe.index.tar.contents import Content, content_of
from datapipe.index.tar.grouping import group_members, split_name
from datapipe.index.tar.headers import TarMember, TarScanner
from datapipe.pack.input.file_start import start_of
from datapipe.pack.input.members import (
    member_rejects,
    read_members,
    sample_of_members,
    tar_members,
)
from datapipe.pack.input.raw_sample import Blob, RawSample, ReadOptions, Reject, printable
from datapipe.pack.records.images.fields import rejected
from datapipe.pack.records.streams.parquet_records import columns_of, count_rows, read_parquet
from datapipe.pack.records.streams.record_files import key_of_record, plain
from datapipe.text.sample_text import parse_json

_COLUMNS = frozenset({"key", "status", "url"})
_TABLES = 16  # how many are looked at: those of interrupted downloads cannot be read
_TAR_END = 1024  # two blocks of zeros
_INTERRUPTED = "img2dataset was interrupted in this shard; run it again to finish it"

_Row = Mapping[str, Any]
_Members = list[tuple[Content, Blob]]


class _Downloaded(NamedTuple):
    """Members of a sample in a shard; `key` is that of its row, `name` is unique."""

    key: str
    name: str
    members: _Members


class Img2DatasetReader:
    """`00000.tar` or the folder `00000`, with `00000.parquet` beside it.

    What was downloaded comes in the order of the tar, or of names in the folder. What was not comes
    behind it as rejects, in the order of the table.
    """

    name = "img2dataset"
    summary = "output of img2dataset (webdataset or files), with failed downloads as rejects"
    fallback = False
    takes = frozenset({"ignore", "key_from", "map"})

    def recognises(self, raw: Path, options: ReadOptions) -> bool:
        return is_img2dataset(raw)

    def estimate(self, raw: Path, options: ReadOptions) -> int | None:
        shards = _shards(raw)
        for shard in shards[:_TABLES]:
            try:
                return count_rows(shard.table) * len(shards)
            except PackError:
                continue
        return None

    def read(self, raw: Path, options: ReadOptions) -> Iterator[RawSample | Reject]:
        shards = _shards(raw)
        if not shards:
            raise PackError(f"{raw}: no shard such as 00000.tar or 00000.parquet is here")
        for shard in shards:
            yield from _read_shard(shard, options)
        for name in _names(raw):
            stem, _, ext = name.rpartition(".")
            if ext in ("tar", "parquet") and not _is_number(stem):
                reason = "the name is no number, as those of img2dataset's shards are"
                yield Reject(printable(name), reason, "DecodeError")


def is_img2dataset(raw: Path) -> bool:
    """Return whether a folder holds shards with a table that has img2dataset's columns; quick."""
    try:
        shards = [s for s in _shards(raw) if s.tar.is_file() or s.folder.is_dir()]
    except (PackError, OSError):
        return False
    for table in [s.table for s in shards if s.table.is_file()][:_TABLES]:
        try:
            return columns_of(table).keys() >= _COLUMNS
        except PackError:
            continue
    return False


# --- shards -----------------------------------------------------------------------------------


class _Paths(NamedTuple):
    """Paths of the parts of a shard, whether they exist or not."""

    tar: Path
    folder: Path
    table: Path
    stats: Path


def _names(raw: Path) -> list[str]:
    try:
        return sorted(os.listdir(raw))
    except OSError as error:
        raise PackError(
            f"{raw}: cannot be read: {error.strerror}; give the folder that img2dataset wrote"
        ) from error


def _is_number(stem: str) -> bool:
    return stem.isascii() and stem.isdecimal()


def _shards(raw: Path) -> list[_Paths]:
    """Return the shards in the order of their numbers."""
    stems = {name.removesuffix(".tar").removesuffix(".parquet") for name in _names(raw)}
    endings = (".tar", "", ".parquet", "_stats.json")
    return [
        _Paths(*(raw / (stem + ending) for ending in endings))
        for stem in sorted(filter(_is_number, stems), key=lambda stem: (int(stem), stem))
    ]


def _read_shard(shard: _Paths, options: ReadOptions) -> Iterator[RawSample | Reject]:
    in_folder = shard.folder.is_dir()
    if shard.tar.exists() and in_folder:
        raise PackError(
            f"{shard.tar} and {shard.folder} are the same shard; move one of them elsewhere"
        )
    rows: list[_Row | Reject] = []
    interrupted = _is_interrupted(shard)
    if interrupted:
        rows = [Reject(shard.table.name, _INTERRUPTED, "DecodeError")]
    elif shard.table.exists():
        rows = list(read_parquet(shard.table, shard.table.name))
    samples: list[_Downloaded] = []
    rejects: list[Reject] = []
    if in_folder:
        samples, rejects = _read_folder(shard.folder, interrupted, options)
    elif shard.tar.exists():
        samples, rejects = _read_tar(shard.tar, interrupted, options)
    home = shard.folder.name if in_folder else shard.tar.name
    keys = {sample.key for sample in samples}
    width = max(map(len, keys), default=0)
    keyed = [(_key(row, width), row) for row in rows]
    by_key = {key: row for key, row in keyed if isinstance(row, Mapping)}
    for key, name, members in samples:
        source = f"{home}{'/' if in_folder else ':'}{printable(name)}"
        yield _sample(source, members, by_key.get(key), options)
    yield from rejects
    for number, (key, row) in enumerate(keyed):
        if isinstance(row, Reject):
            yield row
        elif key not in keys:
            label = printable(key or f"row {number}")
            yield _failed(f"{shard.table.name}:{label}", row, home)


def _is_interrupted(shard: _Paths) -> bool:
    """Return whether a download stopped in this shard: its table was begun, but has no end yet."""
    if shard.stats.exists() or not shard.table.is_file():
        return False
    with shard.table.open("rb") as file:
        head = file.read(4)
        file.seek(max(shard.table.stat().st_size - 4, 0))
        tail = file.read(4)
        size = file.tell()
    return not head or (head == b"PAR1" and (tail != b"PAR1" or size < 12))


def _key(row: _Row | Reject, width: int) -> str:
    """Return the key of a row as members are named; a rewritten table may hold it as a number."""
    key = None if isinstance(row, Reject) else row.get("key")
    return str(key).zfill(width) if isinstance(key, int) else "" if key is None else str(key)


def _failed(source: str, row: _Row, home: str) -> Reject:
    status = row.get("status")
    if status == "success":
        reason = f"img2dataset: status is success, but {home} does not hold it"
        return Reject(source, reason, "MissingMember")
    message = " ".join(str(row.get("error_message") or "").split())
    reason = f"img2dataset: {status or 'no status'}" + (f": {message}" if message else "")
    return Reject(
        source, reason, "DecodeError" if status == "failed_to_resize" else "MissingMember"
    )


# --- what was downloaded ----------------------------------------------------------------------


def _read_tar(
    path: Path, interrupted: bool, options: ReadOptions
) -> tuple[list[_Downloaded], list[Reject]]:
    """Return the samples of a tar, and what fits in none."""
    members: list[TarMember] = []
    with TarScanner(path) as tar:
        cut = interrupted and tar.read(max(tar.bytes - _TAR_END, 0), _TAR_END) != bytes(_TAR_END)
        try:
            ignore = parse_ignore(options.ignore)
            members.extend(read_members(tar, ignore, options.notes, path.name))
        except StoreError:
            is_tar = tar.bytes < 512 or tar.read(257, 5) == b"ustar"
            if not (interrupted and is_tar):
                raise
            cut = True
        groups = group_members(members)
        rejects = member_rejects(path.name, groups, tar)
    samples = [_Downloaded(g.key, g.name, tar_members(path, g)) for g in groups.samples]
    if cut and samples:
        # Members of a sample stand behind each other: only the last can lack some.
        last = samples.pop().name
        reason = f"may lack members, as the tar is cut off behind it: {_INTERRUPTED}"
        rejects.append(Reject(f"{path.name}:{printable(last)}", reason, "MissingMember"))
    return samples, rejects


def _read_folder(
    folder: Path, interrupted: bool, options: ReadOptions
) -> tuple[list[_Downloaded], list[Reject]]:
    """Return the samples of a folder, in order of name, and the files that fit in none."""
    samples: dict[str, _Members] = {}
    rejects = []
    ignore = parse_ignore(options.ignore)
    for name in _names(folder):
        label = f"{folder.name}/{printable(name)}"
        parts = split_name(name)
        if pattern := ignored_by(name, ignore):
            options.notes.leave_out(label, why_ignored(pattern))
        elif parts is not None:
            blob = Blob(f"{folder}/{name}", name=label)
            start = b"" if member_kind(parts[1]) else start_of(blob.path, START)
            samples.setdefault(parts[0], []).append((content_of(parts[1], start), blob))
        elif not name.startswith("."):
            rejects.append(Reject(label, "name has no key and extension", "DecodeError"))
    if interrupted:
        # The metadata is the last that img2dataset writes of a sample.
        for key in [k for k, m in samples.items() if all(c.ext != "json" for c, _ in m)]:
            del samples[key]
            reason = f"has no metadata yet: {_INTERRUPTED}"
            rejects.append(Reject(f"{folder.name}/{printable(key)}", reason, "MissingMember"))
    return [_Downloaded(key, key, members) for key, members in samples.items()], rejects


def _sample(
    source: str, members: _Members, row: _Row | None, options: ReadOptions
) -> RawSample | Reject:
    sample = sample_of_members(source, members, options.notes)
    if isinstance(sample, Reject):
        return sample
    if not sample.images:
        return Reject(source, "there is no image of this key", "MissingMember")
    try:
        sample = sample._replace(key=_key_from(sample.record, row, options))
        if sample.record is None and row is not None:
            record, kept = plain(row)
            sample = sample._replace(record=record, others=sample.others + kept)
    except SampleError as error:
        return rejected(source, error)
    return sample


def _key_from(metadata: Any, row: _Row | None, options: ReadOptions) -> str:
    """Return the value that `--key-from` names, from the table rather than the metadata."""
    if options.key_from is None:
        return ""
    fields = row or {}
    if options.key_from not in fields and isinstance(metadata, Blob):
        fields = parse_json(metadata.read())
        if not isinstance(fields, Mapping):
            raise DecodeError("metadata is not an object", member=metadata.label)
    return key_of_record(fields, options)


READER = Img2DatasetReader()
