"""The index of tar files that someone else wrote, made without rewriting them.

One pass over a tar finds where every member is and takes its checksum. Image headers and texts
are parsed on the way; pixels are not decoded.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import pyarrow as pa

from datapipe.declared import Word, checked
from datapipe.errors import DecodeError, IndexMismatch, MissingMember
from datapipe.index.files.derived import writing_instead_of
from datapipe.index.files.lock import lock_file
from datapipe.index.ignore import ignored_by, parse_ignore, unmatched, why_ignored
from datapipe.index.images.header import NeedMoreData, probe
from datapipe.index.manifest import (
    MANIFEST,
    Manifest,
    Shard,
    read_manifest,
    refuse_unfinished,
    write_manifest,
)
from datapipe.index.members import Kind
from datapipe.index.parquet import checked_index, to_table, write_index
from datapipe.index.rows import ImageSize, Member, Row, Rows
from datapipe.index.tar.contents import (
    FURTHER_TEXT,
    Content,
    companions,
    content_of,
    image_order,
    refuse_missing_image,
    why_unread,
    with_starts,
)
from datapipe.index.tar.findings import Findings
from datapipe.index.tar.grouping import BEFORE, Group, group_members, name_in_tar, split_name
from datapipe.index.tar.headers import WHOLE, TarMember, TarScanner, check_ends
from datapipe.index.tar.listing import Tars, index_home, tars_at
from datapipe.progress import Progress
from datapipe.report.table import counted
from datapipe.text import sample_text as texts
from datapipe.workers.threads import ThreadPool

logger = logging.getLogger(__name__)

_NAMED = 3  # folders, or reasons, in a message
_PEEK = 16 * 1024 - 512
_THREADS = 4  # that read; headers are parsed with the GIL held, so more gain little


@checked(IndexMismatch)
def index_shards(
    folder: str | os.PathLike[str],
    *,
    home: Path | None = None,
    force: bool = False,
    ignore: Word | Sequence[Word] = (),
) -> Manifest:
    """Index every tar in `folder` and write the manifest.

    Args:
        folder: where the shards are; or a list of shards, such as "data/train-{000..099}.tar".
        home: where index files and manifest go; by default `folder` itself, for a list a folder of
            its own beside the shards, or the user's cache folder where these cannot be written.
        force: index again even if there is a manifest. Members in it that `ignore` names have the
            same effect.
        ignore: patterns of members that are left out, such as "*.mp4" or "*.seg.png"; several in a
            list, or separated by commas.

    A sample is left out, with a warning, if a loader would not see what it holds: a video with a
    text, a missing image, a format that only packing reads.

    Raises:
        IndexMismatch: no tar file is there, the folder is a pack of datapipe's own, every member
            was left out, or shards are missing or changed since they were indexed and `force` is
            not given.
        StoreError: a shard is compressed, damaged, empty or cut off.

    Examples:
        >>> index_shards("tars/").samples
        8
    """
    tars, patterns = tars_at(folder), parse_ignore(ignore)
    refuse_unfinished(tars.folder)
    if not tars.shards and not (tars.folder / MANIFEST).exists():
        raise IndexMismatch(f"{folder}: no .tar file is here or below; give the folder of the tars")
    home = home or index_home(tars)
    with writing_instead_of(tars.folder, home):
        home.mkdir(parents=True, exist_ok=True)
    with lock_file(home / ".index.lock", "indexes tars"):
        manifest = None
        if (home / MANIFEST).exists():
            manifest = read_manifest(home)
            if not manifest.foreign:
                raise IndexMismatch(
                    f"{folder} was packed by datapipe and has its index; to rebuild it, run "
                    "`datapipe pack` into another folder"
                )
        if not tars.shards:
            raise IndexMismatch(f"{folder}: no .tar file is here or below")
        if manifest and not force:
            check_same(tars, manifest)
            named = dict(zip(tars.names(), tars.shards, strict=True)) if patterns else {}
            tables = ((named[shard.name], checked_index(home, shard)) for shard in manifest.shards)
            if not patterns or not any(_has_ignored(*each, patterns) for each in tables):
                return manifest  # another rank was quicker
        _refuse_packed(tars)
        check_ends(tars.shards)
        manifest, found = _index_all(tars, home, patterns)
        if not manifest.samples and found.left_out.total():
            lines = found.left_out.lines("{count}, {text} ({names})", "member")
            raise IndexMismatch(
                f"{tars.name}: no sample is left, as every member is left out: "
                f"{'; '.join(lines[:_NAMED])}{'; ...' * (len(lines) > _NAMED)}; mend the tars, or "
                "leave out fewer members with --ignore"
            )
        for line in (*found.lines(), *unmatched(patterns, found.left_out)):
            logger.warning("%s", line)
        write_manifest(home, manifest)
        return manifest


def _has_ignored(path: Path, table: pa.Table, patterns: tuple[str, ...]) -> bool:
    """Return whether the index of a tar has members that `--ignore` names."""
    names = (table[name].to_pylist() for name in ("key", "ext", "offset"))
    with path.open("rb") as tar:
        for key, exts, offsets in zip(*names, strict=True):
            for ext, offset in zip(exts, offsets, strict=True):
                if ignored_by(f"{key}.{ext}", patterns):
                    return True
                # The index has `img.jpg` for a JPEG called `img`, whose name only the tar has.
                if ignored_by(f"{key}.{ext.rpartition('.')[0]}", patterns):
                    tar.seek(start := max(offset - BEFORE, 0))
                    if name_in_tar(tar.read(offset - start), key, ext)[1] != ext.lower():
                        return True
    return False


def _refuse_packed(tars: Tars) -> None:
    """Raise IndexMismatch for a folder of several packed datasets, such as `train/` and `val/`."""
    below = sorted({path.parent for path in tars.shards if not tars.listed} - {tars.folder})
    with_manifest = [folder for folder in below if (folder / MANIFEST).exists()]
    packed = [folder for folder in with_manifest if not read_manifest(folder).foreign]
    if packed:
        names = ", ".join(map(str, packed[:_NAMED])) + (", ..." if len(packed) > _NAMED else "")
        raise IndexMismatch(
            f"{tars.name} holds datasets that datapipe packed ({names}); give one of them, or a "
            "list of them to train on all"
        )


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


def _index_all(tars: Tars, home: Path, ignore: tuple[str, ...]) -> tuple[Manifest, Findings]:
    entries, findings = [], Findings()
    again: list[str] = []
    total = sum(path.stat().st_size for path in tars.shards)
    stop = threading.Event()

    def index(shard: tuple[Path, str]) -> tuple[Shard, list[str], Findings]:
        """Write the index of one shard; return its entry, keys that come again, findings."""
        path, name = shard
        with TarScanner(path, window=WHOLE) as tar:
            rows, found = scan_tar(tar, name, ignore, progress, stop)
        target = home / f"{name.removesuffix('.tar')}.index.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
        digest = write_index(temporary, to_table(Rows(rows)))
        temporary.replace(target)
        entry = Shard(
            name=name,
            index=target.relative_to(home).as_posix(),
            samples=len(rows),
            images=sum(len(row.images) for row in rows),
            bytes=path.stat().st_size,
            index_sha256=digest,
        )
        return entry, [row.source for row in rows if row.source != f"{name}:{row.key}"], found

    with (
        Progress("indexing", unit="sample", total=total, total_unit="bytes") as progress,
        closing(ThreadPool(index, _THREADS, name="datapipe-index")) as pool,
    ):
        try:
            for shard, repeated, found in pool.run(zip(tars.shards, tars.names(), strict=True)):
                entries.append(shard)
                again += repeated
                findings.update(found)
        finally:
            stop.set()  # after an error or an interrupt, shards in progress are given up
    if again:
        logger.warning(
            "%s with the key of an earlier one in the same shard, for example %s; each is a "
            "separate sample, as in WebDataset",
            *(counted(len(again), "sample"), again[0]),
        )
    return Manifest(shards=tuple(entries)), findings


class _Fact(NamedTuple):
    """Facts of a member: what it holds, its image size, text or error, and its checksum."""

    content: Content
    value: Any
    checksum: int


def scan_tar(
    tar: TarScanner,
    name: str,
    ignore: tuple[str, ...] = (),
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> tuple[list[Row], Findings]:
    """Return the rows of one foreign shard called `name`, and findings for the user.

    Once `stop` is set, the scan ends early with the samples found so far. Raises `IndexMismatch` if
    most of its samples hold what a loader does not read.
    """
    facts: dict[tuple[str, int], _Fact] = {}  # a hard link has the offset of another
    findings = Findings()

    def watched() -> Iterator[TarMember]:
        reached = 0
        for member in with_starts(tar):
            if stop is not None and stop.is_set():
                return
            if ignore and (pattern := ignored_by(member.name, ignore)):
                findings.left_out.add(why_ignored(pattern), f"{name}:{member.name}")
                continue
            content = content_of((split_name(member.name) or ("", ""))[1], member.start)
            fact = _peek(tar, member, content.kind)
            facts[member.name, member.offset] = _Fact(content, fact, tar.checksum(member))
            if progress:
                progress.advance(0, of_total=member.offset + member.size - reached)
            reached = member.offset + member.size
            yield member

    links = (each for each in tar.unread if not ignored_by(each[0], ignore))  # filled by then
    found = group_members(watched(), links)
    for member, reason in (*tar.unread, *found.left_out):
        findings.left_out.add(reason, f"{name}:{member}")
    rows = []
    unread = ""
    for group in found.samples:
        of_group = [facts[member.name, member.offset] for member in group.members]
        row = _row(group, of_group, name, findings)
        if isinstance(row, Row):
            rows.append(row)
        else:
            unread = unread or f"{group.name}: {row}"
            findings.samples.add(row, f"{name}:{group.name}")
        if progress:
            progress.advance(1)
    if unread and 2 * len(rows) < len(found.samples):
        raise IndexMismatch(
            f"{tar.path}: {len(found.samples) - len(rows):,} of {len(found.samples):,} samples "
            f"cannot be loaded without packing, such as {unread}"
        )
    return rows, findings


def _peek(tar: TarScanner, member: TarMember, kind: Kind) -> Any:
    """Return the size of an image, the content of a text, or a DecodeError; else None."""
    try:
        if kind == "image":
            head = tar.read(member.offset, min(member.size, _PEEK))
            try:
                info = probe(head, complete=len(head) == member.size)
            except NeedMoreData:
                info = probe(tar.read(member.offset, member.size))
            return ImageSize(*info.upright, info.orientation)
        if kind:
            parse = texts.parse_text if kind == "text" else texts.parse_json
            return parse(tar.read(member.offset, member.size))
    except DecodeError as error:
        return error
    return None


def _row(group: Group, facts: Sequence[_Fact], shard: str, findings: Findings) -> Row | str:
    """Return the row of a sample, or why it is left out: a loader would see something else."""
    images, caption, record = [], None, None
    listed = []
    held = list(zip(group.members, facts, strict=True))
    places = [n for n, (_, fact) in enumerate(held) if fact.content.kind == "image"]
    ordered = image_order([facts[place].content.ext for place in places])
    of_images = [held[places[number]] for number in ordered]
    for place, image in zip(places, of_images, strict=True):
        held[place] = image
    for member, (content, value, checksum) in held:
        listed.append(Member(content.indexed, member.offset, member.size, checksum))
        if isinstance(value, DecodeError):
            findings.broken.add(value.reason, f"{shard}:{member.name}")
        if content.kind == "image":
            images.append(value if isinstance(value, ImageSize) else ImageSize(0, 0))
        elif not isinstance(value, DecodeError):
            if content.kind == "text" and caption is None:
                caption = value
            elif content.kind == "json" and record is None:
                record = texts.as_record(value)
    contents = [fact.content for fact in facts]
    text = texts.sample_text(caption, record)
    if reason := _why_left_out(contents, record, has_images=bool(images)):
        return reason
    # A loader names the sample of a broken text.
    is_broken = any(isinstance(fact.value, DecodeError) for fact in facts)
    if not images and not text.strip() and not is_broken:
        return "sample has neither image nor text"
    _note(group, contents, shard, findings)
    length = len(text.encode("utf-8", "surrogatepass"))  # JSON can spell lone surrogates
    return Row(group.key, tuple(listed), tuple(images), length, f"{shard}:{group.name}")


def _why_left_out(contents: Sequence[Content], record: Any, *, has_images: bool) -> str:
    """Return why a loader would see something else than a sample holds; "" where it does not."""
    converted = next((content for content in contents if content.converted), None)
    if converted:
        return (
            f"`{converted.ext}` is {converted.medium}, which is re-encoded when the tars are "
            "packed; run `datapipe pack`"
        )
    exts = [content.ext for content in contents]
    found = texts.find_texts(exts)
    # Packing reads these texts, or refuses them. A loader would pass over them without a word.
    if found.named and texts.named_texts_count(len(found.named), record):
        names = " and ".join(f"`{exts[number]}`" for number in found.named)
        return found.unclear or (
            f"its text is in {names}, which is read when the tars are packed; run `datapipe pack`"
        )
    if has_images:
        return ""
    if reason := why_unread(contents):
        return reason
    try:
        refuse_missing_image(record)
    except MissingMember as error:
        return error.reason
    return ""


def _note(group: Group, contents: Sequence[Content], shard: str, findings: Findings) -> None:
    """Note members that no loader reads, and images with names of their own."""
    for ext in companions([content.ext for content in contents if content.kind == "image"]):
        findings.accompany(ext, f"{shard}:{group.name}")
    seen = set()
    for member, content in zip(group.members, contents, strict=True):
        if not content.kind:
            findings.keep(content.ext, content.medium, f"{shard}:{member.name}")
        elif content.kind != "image" and content.kind in seen:
            findings.keep(content.ext, FURTHER_TEXT, f"{shard}:{member.name}")
        seen.add(content.kind)
