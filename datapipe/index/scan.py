"""Index tar files that someone else wrote, without rewriting them.

One pass over the headers finds where every member lies. Image headers and texts are read on the
way; pixels are not. Checksums are left out, since they would need every byte.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datapipe.errors import DecodeError, IndexMismatch
from datapipe.index.columns import cache_folder
from datapipe.index.imageinfo import NeedMoreData, is_image_extension, probe
from datapipe.index.manifest import (
    MANIFEST,
    Manifest,
    Shard,
    read_manifest,
    refuse_unfinished,
    write_manifest,
)
from datapipe.index.parquet import to_table, write_index
from datapipe.index.rows import ImageSize, Member, Row, Rows
from datapipe.index.tarscan import TarMember, TarScanner
from datapipe.index.text import TEXT_EXTENSIONS, parse_json, parse_text, sample_text
from datapipe.progress import Progress

logger = logging.getLogger(__name__)

# WebDataset's rule: the key is the path up to the first dot of the file name. Hidden files, such as
# the `._name` that macOS adds beside every file, have no key.
_NAME = re.compile(r"^((?:.*/)?[^./]+)\.([^/]+)$", re.DOTALL)
_COMPRESSED = (".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tgz")
_PEEK = 16 * 1024 - 512


@dataclass(frozen=True)
class Skipped:
    """A member that no sample has, or an image whose header says nothing."""

    shard: str
    member: str
    reason: str


def split_name(name: str) -> tuple[str, str] | None:
    """Split a member's name into key and extension; None where WebDataset sees no sample in it."""
    match = _NAME.match(name.removeprefix("./"))
    return (match[1], match[2]) if match else None


def group_members(members: Iterator[TarMember]) -> tuple[dict[str, list[TarMember]], list[str]]:
    """Gather a tar's members by key, in order of first appearance; and the names without a key."""
    groups: dict[str, list[TarMember]] = {}
    nameless = []
    for member in members:
        parts = split_name(member.name)
        if parts is None:
            nameless.append(member.name)
        else:
            groups.setdefault(parts[0], []).append(member)
    return groups, nameless


def find_shards(folder: Path) -> list[Path]:
    """The tar files of a folder and of those below it, in order of name; hidden ones are left out.

    Raises:
        IndexMismatch: some are compressed, or have a name that cannot be written down.
    """
    visible = [
        path
        for path in sorted((*folder.rglob("*.tar*"), *folder.rglob("*.tgz")))
        if path.is_file() and not any(p.startswith(".") for p in path.relative_to(folder).parts)
    ]
    compressed = [path for path in visible if path.name.lower().endswith(_COMPRESSED)]
    if compressed:
        raise IndexMismatch(
            f"{folder}: {len(compressed)} shards are compressed (for example "
            f"{compressed[0].name}), and samples cannot be read from the middle of them; "
            "decompress them first, images gain nothing from it, or move them elsewhere"
        )
    shards = [path for path in visible if path.suffix == ".tar"]
    for path in shards:
        if not _is_text(path.name):
            raise IndexMismatch(f"{path!r}: the name is not UTF-8; rename the file")
    return shards


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def index_home(folder: Path) -> Path:
    """Where the index of foreign shards in `folder` goes: beside them, if that can be written."""
    if os.access(folder, os.W_OK):
        return folder
    digest = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
    elsewhere = cache_folder() / digest[:32]
    logger.warning("%s cannot be written; its index goes to %s", folder, elsewhere)
    return elsewhere


def index_shards(
    folder: str | os.PathLike[str], *, home: Path | None = None, force: bool = False
) -> Manifest:
    """Index every tar in `folder` and write the manifest.

    Args:
        folder: where the shards lie.
        home: where index files and manifest go; by default `folder` itself, or the user's cache
            folder where it cannot be written.
        force: index again where there is a manifest already.

    Raises:
        IndexMismatch: no tar file is there, the folder is a pack of datapipe's own, or shards
            changed since they were indexed and `force` is not given.
        StoreError: a shard is compressed, damaged or cut off.
    """
    folder = Path(folder)
    refuse_unfinished(folder)
    home = home or index_home(folder)
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
        shards = find_shards(folder)
        if not shards:
            raise IndexMismatch(f"{folder}: no .tar file is here or below")
        if manifest and not force:
            check_same(folder, manifest, shards)
            return manifest  # another rank was quicker
        manifest, skipped = _index_all(folder, home, shards)
        for item in skipped[:5]:
            logger.warning("%s: %s: %s", item.shard, item.member, item.reason)
        if len(skipped) > 5:
            logger.warning("... and %d more such members", len(skipped) - 5)
        write_manifest(home, manifest)
        return manifest


def check_same(folder: Path, manifest: Manifest, shards: list[Path]) -> None:
    """Make sure that `shards` are those that were indexed, by name and size.

    Raises:
        IndexMismatch: they are others.
    """
    before = {shard.name: shard.bytes for shard in manifest.shards}
    now = {path.relative_to(folder).as_posix(): path.stat().st_size for path in shards}
    if before != now:
        name = min(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        raise IndexMismatch(
            f"{folder}: its shards changed after they were indexed, for example {name}; index "
            f"again with `datapipe index --force {folder}`"
        )


def _index_all(folder: Path, home: Path, shards: list[Path]) -> tuple[Manifest, list[Skipped]]:
    entries, skipped = [], []
    total = sum(path.stat().st_size for path in shards)
    with Progress("indexing", unit="sample", total=total, total_unit="bytes") as progress:
        for path in shards:
            name = path.relative_to(folder).as_posix()
            index = f"{name.removesuffix('.tar')}.index.parquet"
            rows, trouble = scan_shard(path, name, progress)
            skipped += trouble
            target = home / index
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
            digest = write_index(temporary, to_table(Rows(rows)))
            temporary.replace(target)
            entries.append(
                Shard(
                    name=name,
                    index=index,
                    samples=len(rows),
                    images=sum(len(row.images) for row in rows),
                    bytes=path.stat().st_size,
                    index_sha256=digest,
                )
            )
    return Manifest(shards=tuple(entries)), skipped


def scan_shard(
    path: Path, name: str, progress: Progress | None = None
) -> tuple[list[Row], list[Skipped]]:
    """Rows of one foreign shard called `name`, and the members that fit in none."""
    facts: dict[int, Any] = {}
    skipped: list[Skipped] = []
    with TarScanner(path) as tar:

        def watched() -> Iterator[TarMember]:
            reached = 0
            for member in tar:
                facts[member.offset] = _peek(tar, member)
                if progress:
                    progress.advance(0, of_total=member.offset + member.size - reached)
                reached = member.offset + member.size
                yield member

        groups, nameless = group_members(watched())
        skipped += [Skipped(name, member, reason) for member, reason in tar.unread]
    skipped += [Skipped(name, member, "has no key and extension") for member in nameless]
    rows = []
    for key, members in groups.items():
        rows.append(_row(key, members, facts, name, skipped))
        if progress:
            progress.advance(1)
    return rows, skipped


def _peek(tar: TarScanner, member: TarMember) -> Any:
    """ImageSize of an image, content of a text, None of other members; DecodeError if broken."""
    parts = split_name(member.name)
    if parts is None:
        return None
    ext = parts[1].lower()
    try:
        if is_image_extension(ext):
            head = tar.read(member.offset, min(member.size, _PEEK))
            try:
                info = probe(head, complete=len(head) == member.size)
            except NeedMoreData:
                info = probe(tar.read(member.offset, member.size))
            return ImageSize(*info.upright, info.orientation)
        if ext in TEXT_EXTENSIONS:
            return parse_text(tar.read(member.offset, member.size))
        if ext == "json":
            return parse_json(tar.read(member.offset, member.size))
    except DecodeError as error:
        return error
    return None


def _row(
    key: str,
    members: list[TarMember],
    facts: dict[int, Any],
    shard: str,
    skipped: list[Skipped],
) -> Row:
    images, caption, record = [], None, None
    listed = []
    for member in members:
        ext = (split_name(member.name) or ("", ""))[1]
        fact = facts[member.offset]
        listed.append(Member(ext, member.offset, member.size, None))
        if isinstance(fact, DecodeError):
            skipped.append(Skipped(shard, member.name, fact.reason))
        if is_image_extension(ext):
            images.append(fact if isinstance(fact, ImageSize) else ImageSize(0, 0))
        elif isinstance(fact, DecodeError):
            continue
        elif ext.lower() in TEXT_EXTENSIONS:
            caption = fact if caption is None else caption
        elif ext.lower() == "json":
            record = fact if record is None else record
    text = sample_text(caption, record)
    length = len(text.encode("utf-8", "surrogatepass"))  # JSON can spell lone surrogates
    return Row(key, tuple(listed), tuple(images), length, f"{shard}:{key}")


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Let one process at a time index into `home`; the lock dies with its holder."""
    with (home / ".index.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
