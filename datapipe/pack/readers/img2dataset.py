"""Output of img2dataset: shards of downloaded images, each with a table of all that it tried.

Source of the layout: https://github.com/rom1504/img2dataset, `writer.py` and `downloader.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from datapipe.errors import DecodeError, PackError, SampleError, StoreError
from datapipe.index.ignore import ignored_by, parse_ignore, why_ignored
from datapipe.index.media import START
from datapipe.index.members import member_kind
from datapipe.index.tar.contents import Content, content_of
from datapipe.index.tar.grouping import group_members, split_name
from datapipe.index.tar.headers import TarMember, TarScanner
from datapipe.pack.input.file_starts import ends_of, start_of
from datapipe.pack.input.members import member_rejects, read_members, sample_of_members, tar_members
from datapipe.pack.input.raw_sample import Blob, Input, ReadOptions, Reject, printable
from datapipe.pack.input.rejected import rejected
from datapipe.pack.input.survey import Survey
from datapipe.pack.records.streams.parquet_records import columns_of, count_rows, read_parquet
from datapipe.pack.records.streams.record_files import key_of_record, plain
from datapipe.text.sample_text import parse_json

_COLUMNS = frozenset({"key", "status", "url"})
_TABLES = 16  # how many are looked at: those of interrupted downloads cannot be read
_TAR_END = 1024  # two blocks of zeros
_INTERRUPTED = "img2dataset was interrupted in this shard; run it again to finish it"

_Row = Mapping[str, Any]
_Members = list[tuple[Content, Blob]]
_Downloaded = tuple[str, str, _Members]  # a sample: key of its row, source, members


class Img2DatasetReader:
    """`00000.tar` or the folder `00000`, with `00000.parquet` beside it.

    What was downloaded comes in the order of the tar, or of names in the folder. What was not comes
    behind it as rejects, in the order of the table.
    """

    name = "img2dataset"
    summary = "output of img2dataset (webdataset or files), with failed downloads as rejects"
    takes = frozenset({"ignore", "key_from", "map", "wait"})

    def recognises(self, survey: Survey, options: ReadOptions) -> bool:
        shards = [shard for shard in _download(survey).shards if shard.tar or shard.folder]
        for table in [shard.table for shard in shards if shard.table][:_TABLES]:
            with suppress(PackError):
                return survey.look(columns_of, table).keys() >= _COLUMNS
        return False

    def open(self, survey: Survey, options: ReadOptions) -> Download:
        if not survey.is_folder:
            raise PackError(
                f"{survey.raw} cannot be read: it is not a folder; give the folder of img2dataset"
            )
        download = _download(survey)
        if not download.shards:
            raise PackError(f"{survey.raw}: no shard such as 00000.tar or 00000.parquet is here")
        return download

    def estimate(self, source: Download, options: ReadOptions) -> int | None:
        for shard in source.shards[:_TABLES]:
            if shard.table is not None:
                with suppress(PackError):
                    return count_rows(shard.table) * len(source.shards)
        return None

    def read(self, source: Download, options: ReadOptions) -> Iterator[Input]:
        for shard in source.shards:
            yield from _read_shard(source.survey, shard, options)
        for name in source.others:
            reason = "the name is not a number, unlike those of img2dataset's shards"
            yield Reject(printable(name), reason, "DecodeError")


class DownloadedShard(NamedTuple):
    """Parts of a shard that are there: a tar or a folder, its table, and its statistics."""

    stem: str
    tar: Path | None
    folder: Path | None
    table: Path | None
    has_stats: bool


class Download(NamedTuple):
    """Shards of a survey by their numbers, and names of tars and tables that are no shards."""

    survey: Survey
    shards: list[DownloadedShard]
    others: list[str]


def _download(survey: Survey) -> Download:
    top = survey.top
    there = {*top.files, *(f"{name}/" for name in top.folders)}
    data = [name for name in top.files if name.endswith((".tar", ".parquet"))]
    others = [name for name in data if not _is_number(name.rpartition(".")[0])]
    stems = {*top.folders, *(name.rpartition(".")[0] for name in data)}
    shards = []
    for stem in sorted(filter(_is_number, stems), key=lambda stem: (int(stem), stem)):
        parts = (f"{stem}.tar", f"{stem}/", f"{stem}.parquet")
        tar, folder, table = (survey.raw / part if part in there else None for part in parts)
        shards.append(DownloadedShard(stem, tar, folder, table, f"{stem}_stats.json" in there))
    return Download(survey, shards, others)


def _is_number(stem: str) -> bool:
    return stem.isascii() and stem.isdecimal()


def _read_shard(survey: Survey, shard: DownloadedShard, options: ReadOptions) -> Iterator[Input]:
    if shard.tar and shard.folder:
        raise PackError(
            f"{shard.tar} and {shard.folder} are the same shard; move one of them elsewhere"
        )
    rows: list[_Row | Reject] = []
    table = f"{shard.stem}.parquet"
    interrupted = shard.table is not None and not shard.has_stats and _is_begun(shard.table)
    if interrupted:
        rows = [Reject(table, _INTERRUPTED, "DecodeError")]
    elif shard.table:
        rows = list(read_parquet(shard.table, table))
    samples: list[_Downloaded] = []
    rejects: list[Reject] = []
    if shard.folder:
        samples, rejects = _read_folder(survey, shard.folder, interrupted, options)
    elif shard.tar:
        options.wait(shard.tar)
        samples, rejects = _read_tar(shard.tar, interrupted, options)
    home = shard.stem if shard.folder else f"{shard.stem}.tar"
    keys = {key for key, _, _ in samples}
    width = max(map(len, keys), default=0)
    keyed = [(_key(row, width), row) for row in rows]
    by_key = {key: row for key, row in keyed if isinstance(row, Mapping)}
    for key, source, members in samples:
        yield _sample(source, members, by_key.get(key), options)
    yield from rejects
    for number, (key, row) in enumerate(keyed):
        if isinstance(row, Reject):
            yield row
        elif key not in keys:
            label = printable(key or f"row {number}")
            yield _failed(f"{table}:{label}", row, home)


def _is_begun(table: Path) -> bool:
    """Return whether a table was begun and has no end yet, as where a download stopped."""
    head, tail = ends_of(table, 12)
    is_whole = tail.endswith(b"PAR1") and len(tail) == 12
    return not head or (head.startswith(b"PAR1") and not is_whole)


def _key(row: _Row | Reject, width: int) -> str:
    """Return the key of a row as members are named; a rewritten table may hold it as a number."""
    key = None if isinstance(row, Reject) else row.get("key")
    if isinstance(key, int):
        return str(key).zfill(width)
    return "" if key is None else str(key)


def _failed(source: str, row: _Row, home: str) -> Reject:
    status = row.get("status")
    message = " ".join(str(row.get("error_message") or "").split())
    reason = f"img2dataset: {status or 'no status'}" + (f": {message}" if message else "")
    if status == "success":
        reason = f"img2dataset: status is success, but {home} does not hold it"
    error = "DecodeError" if status == "failed_to_resize" else "MissingMember"
    return Reject(source, reason, error)


def _read_tar(
    path: Path, interrupted: bool, options: ReadOptions
) -> tuple[list[_Downloaded], list[Reject]]:
    members: list[TarMember] = []
    with TarScanner(path) as tar:
        cut = interrupted and tar.read(max(tar.bytes - _TAR_END, 0), _TAR_END) != bytes(_TAR_END)
        try:
            members.extend(read_members(tar, path.name, options))
        except StoreError:
            is_tar = tar.bytes < 512 or tar.read(257, 5) == b"ustar"
            if not (interrupted and is_tar):
                raise
            cut = True
        groups = group_members(members, tar.unread)
        rejects = member_rejects(path.name, groups, tar)
    samples = [
        (group.key, f"{path.name}:{printable(group.name)}", tar_members(path, group))
        for group in groups.samples
    ]
    if cut and samples:
        # Members of a sample stand behind each other: only the last can lack some.
        _, source, _ = samples.pop()
        reason = f"may lack members, as the tar is cut off behind it: {_INTERRUPTED}"
        rejects.append(Reject(source, reason, "MissingMember"))
    return samples, rejects


def _read_folder(
    survey: Survey, folder: Path, interrupted: bool, options: ReadOptions
) -> tuple[list[_Downloaded], list[Reject]]:
    members: dict[str, _Members] = {}
    rejects = []
    ignore = parse_ignore(options.ignore)
    try:
        names = survey.listing(str(folder)).files
    except OSError as error:
        raise PackError(f"{folder}: cannot be read: {error.strerror}") from error
    for name in names:
        label = f"{folder.name}/{printable(name)}"
        parts = split_name(name)
        if pattern := ignored_by(name, ignore):
            options.notes.leave_out(label, why_ignored(pattern))
        elif parts is not None:
            blob = Blob(f"{folder}/{name}", name=label)
            start = b"" if member_kind(parts[1]) else start_of(blob.path, START)
            members.setdefault(parts[0], []).append((content_of(parts[1], start), blob))
        else:
            rejects.append(Reject(label, "name has no key and extension", "DecodeError"))
    if interrupted:
        # The metadata is the last that img2dataset writes of a sample.
        for key in [k for k, held in members.items() if all(c.ext != "json" for c, _ in held)]:
            del members[key]
            reason = f"has no metadata yet: {_INTERRUPTED}"
            rejects.append(Reject(f"{folder.name}/{printable(key)}", reason, "MissingMember"))
    return [(k, f"{folder.name}/{printable(k)}", held) for k, held in members.items()], rejects


def _sample(source: str, members: _Members, row: _Row | None, options: ReadOptions) -> Input:
    sample = sample_of_members(source, members, options)
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
    fields = row or {}
    if options.key_from and options.key_from not in fields and isinstance(metadata, Blob):
        fields = parse_json(metadata.read())
        if not isinstance(fields, Mapping):
            raise DecodeError("metadata is not an object", member=metadata.label)
    return key_of_record(fields, options.key_from)


READER = Img2DatasetReader()
