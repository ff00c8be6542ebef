"""The index of tar files that someone else wrote, made without rewriting them.

One pass over a tar finds where every member is and takes its checksum. Image headers and texts
are parsed on the way; pixels are not decoded.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from datapipe.declared import checked
from datapipe.errors import DecodeError, IndexMismatch
from datapipe.index.files.derived import writing_instead_of
from datapipe.index.images.header import NeedMoreData, probe
from datapipe.index.manifest import (
    MANIFEST,
    Manifest,
    Shard,
    read_manifest,
    refuse_unfinished,
    write_manifest,
)
from datapipe.index.members import member_kind
from datapipe.index.parquet import to_table, write_index
from datapipe.index.rows import ImageSize, Member, Row, Rows
from datapipe.index.tar.grouping import Group, group_members, split_name
from datapipe.index.tar.headers import WHOLE, TarMember, TarScanner, check_ends
from datapipe.index.tar.listing import Tars, index_home, tars_at
from datapipe.progress import Progress
from datapipe.text.sample_text import (
    find_texts,
    named_texts_count,
    parse_json,
    parse_text,
    sample_text,
)

logger = logging.getLogger(__name__)

_PEEK = 16 * 1024 - 512
_THREADS = 4  # that read; headers are parsed with the GIL held, so more gain little


@dataclass(frozen=True)
class Skipped:
    """A member that no sample has, or an image or a text that cannot be read."""

    shard: str
    member: str
    reason: str


@checked(IndexMismatch)
def index_shards(
    folder: str | os.PathLike[str], *, home: Path | None = None, force: bool = False
) -> Manifest:
    """Index every tar in `folder` and write the manifest.

    Args:
        folder: where the shards are; or a list of shards, such as "data/train-{000..099}.tar".
        home: where index files and manifest go; by default `folder` itself, for a list a folder of
            its own beside the shards, or the user's cache folder where these cannot be written.
        force: index again where there is a manifest already.

    Raises:
        IndexMismatch: no tar file is there, the folder is a pack of datapipe's own, or shards
            are missing or changed since they were indexed and `force` is not given.
        StoreError: a shard is compressed, damaged, empty or cut off.

    Examples:
        >>> index_shards("tars/").samples
        8
    """
    tars = tars_at(folder)
    refuse_unfinished(tars.folder)
    if not tars.shards and not (tars.folder / MANIFEST).exists():
        raise IndexMismatch(f"{folder}: no .tar file is here or below; give the folder of the tars")
    home = home or index_home(tars)
    with writing_instead_of(tars.folder, home):
        home.mkdir(parents=True, exist_ok=True)
    with _locked(home):
        manifest = None
        if (home / MANIFEST).exists():
            manifest = read_manifest(home)
            if not manifest.foreign:
                raise IndexMismatch(
                    f"{folder} was packed by datapipe and has its index; to make it anew, run "
                    "`datapipe pack` into another folder"
                )
        if not tars.shards:
            raise IndexMismatch(f"{folder}: no .tar file is here or below")
        if manifest and not force:
            check_same(tars, manifest)
            return manifest  # another rank was quicker
        check_ends(tars.shards)
        manifest, skipped = _index_all(tars, home)
        for item in skipped[:5]:
            logger.warning("%s: %s: %s", item.shard, item.member, item.reason)
        if len(skipped) > 5:
            logger.warning("... and %d more such members", len(skipped) - 5)
        write_manifest(home, manifest)
        return manifest


def check_same(tars: Tars, manifest: Manifest) -> None:
    """Raise `IndexMismatch` unless `tars` are those that were indexed, by name and size."""
    before = {shard.name: shard.bytes for shard in manifest.shards}
    sizes = (path.stat().st_size for path in tars.shards)
    now = dict(zip(tars.names(), sizes, strict=True))
    if before != now:
        name = min(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        raise IndexMismatch(
            f"{tars.name}: its shards changed after they were indexed, for example {name}; index "
            f"again with `datapipe index --force {quote(tars.name)}`"
        )


def _index_all(tars: Tars, home: Path) -> tuple[Manifest, list[Skipped]]:
    entries, skipped = [], []
    again: list[str] = []
    total = sum(path.stat().st_size for path in tars.shards)
    stop = threading.Event()
    with (
        Progress("indexing", unit="sample", total=total, total_unit="bytes") as progress,
        ThreadPoolExecutor(_THREADS, "datapipe-index") as pool,
    ):

        def index(path: Path, name: str) -> tuple[Shard, list[str], list[Skipped]]:
            return _index_one(path, name, home, progress, stop)

        try:
            for shard, repeated, trouble in pool.map(index, tars.shards, tars.names()):
                entries.append(shard)
                again += repeated
                skipped += trouble
        finally:
            stop.set()  # after an error or an interrupt, shards in progress are given up
    if again:
        logger.warning(
            "%d samples have the key of an earlier one in their shard, for example %s; each is a "
            "sample of its own, as for WebDataset",
            *(len(again), again[0]),
        )
    return Manifest(shards=tuple(entries)), skipped


def _index_one(
    path: Path, name: str, home: Path, progress: Progress, stop: threading.Event
) -> tuple[Shard, list[str], list[Skipped]]:
    """Write the index of one shard; return its entry, keys that come again, skipped members."""
    rows, skipped = scan_shard(path, name, progress, stop)
    index = f"{name.removesuffix('.tar')}.index.parquet"
    target = home / index
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    digest = write_index(temporary, to_table(Rows(rows)))
    temporary.replace(target)
    shard = Shard(
        name=name,
        index=index,
        samples=len(rows),
        images=sum(len(row.images) for row in rows),
        bytes=path.stat().st_size,
        index_sha256=digest,
    )
    return shard, [row.source for row in rows if row.source != f"{name}:{row.key}"], skipped


def scan_shard(
    path: Path,
    name: str,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> tuple[list[Row], list[Skipped]]:
    """Return the rows of one foreign shard called `name`, and the members that fit in none.

    Args:
        path: of the shard.
        name: of the shard.
        progress: counts samples and bytes.
        stop: once it is set, ends the scan early with the samples found so far.

    Raises:
        IndexMismatch: most of its samples have their text where a loader does not read it.
    """
    facts: dict[int, tuple[Any, int]] = {}
    skipped: list[Skipped] = []
    with TarScanner(path, window=WHOLE) as tar:

        def watched() -> Iterator[TarMember]:
            reached = 0
            for member in tar:
                if stop is not None and stop.is_set():
                    return
                facts[member.offset] = _peek(tar, member), tar.checksum(member)
                if progress:
                    progress.advance(0, of_total=member.offset + member.size - reached)
                reached = member.offset + member.size
                yield member

        found = group_members(watched())
        skipped += [Skipped(name, member, reason) for member, reason in tar.unread]
    skipped += [Skipped(name, member, reason) for member, reason in found.left_out]
    rows = []
    unread = ""
    for group in found.samples:
        row = _row(group, facts, name, skipped)
        if isinstance(row, Row):
            rows.append(row)
        else:
            unread = f"{group.name}: {row}"
            skipped.append(Skipped(name, group.name, row))
        if progress:
            progress.advance(1)
    if unread and 2 * len(rows) < len(found.samples):
        raise IndexMismatch(
            f"{path}: {len(found.samples) - len(rows):,} of {len(found.samples):,} samples have no "
            f"text that a loader reads, such as {unread}"
        )
    return rows, skipped


def _peek(tar: TarScanner, member: TarMember) -> Any:
    """Return the size of an image, the content of a text, or a DecodeError; else None."""
    parts = split_name(member.name)
    if parts is None:
        return None
    kind = member_kind(parts[1])
    try:
        if kind == "image":
            head = tar.read(member.offset, min(member.size, _PEEK))
            try:
                info = probe(head, complete=len(head) == member.size)
            except NeedMoreData:
                info = probe(tar.read(member.offset, member.size))
            return ImageSize(*info.upright, info.orientation)
        if kind:
            parse = parse_text if kind == "text" else parse_json
            return parse(tar.read(member.offset, member.size))
    except DecodeError as error:
        return error
    return None


def _row(
    group: Group, facts: dict[int, tuple[Any, int]], shard: str, skipped: list[Skipped]
) -> Row | str:
    """Return the row of a sample, or why it is left out: no loader reads where its text is.

    `facts` are what `_peek` found and the checksum of each member, by offset.
    """
    images, caption, record = [], None, None
    listed = []
    for member in group.members:
        ext = (split_name(member.name) or ("", ""))[1]
        fact, checksum = facts[member.offset]
        listed.append(Member(ext, member.offset, member.size, checksum))
        if isinstance(fact, DecodeError):
            skipped.append(Skipped(shard, member.name, fact.reason))
        kind = member_kind(ext)
        if kind == "image":
            images.append(fact if isinstance(fact, ImageSize) else ImageSize(0, 0))
        elif not isinstance(fact, DecodeError):
            if kind == "text" and caption is None:
                caption = fact
            elif kind == "json" and record is None:
                record = fact
    exts = [member.ext for member in listed]
    texts = find_texts(exts)
    # Packing reads these texts, or refuses them. A loader would pass over them without a word.
    if texts.named and named_texts_count(len(texts.named), record):
        names = " and ".join(f"`{exts[number]}`" for number in texts.named)
        return texts.unclear or (
            f"its text is in {names}, which is read when the tars are packed; run `datapipe pack`"
        )
    text = sample_text(caption, record)
    length = len(text.encode("utf-8", "surrogatepass"))  # JSON can spell lone surrogates
    return Row(group.key, tuple(listed), tuple(images), length, f"{shard}:{group.name}")


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold the lock of `home`, so that one process at a time indexes; it dies with its holder."""
    with (home / ".index.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
