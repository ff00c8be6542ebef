"""Counting of tokens by one process at a time; an interrupted count is continued."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from datapipe.errors import IndexMismatch
from datapipe.index.files.block_checksums import write_sums
from datapipe.index.files.derived import new_folder, open_or_build, write_about
from datapipe.index.files.lock import lock_file
from datapipe.index.files.npy import npy_files
from datapipe.index.manifest import Manifest, Shard
from datapipe.index.tokens.columns import (
    ABOUT,
    FAILURES,
    FILES,
    SHARDS,
    TokenColumns,
    map_tokens,
    open_tokens,
    token_folder,
)
from datapipe.index.tokens.parts import DTYPES, OFFSETS, VERSION, PartFiles, TextFailure, TokenPart

logger = logging.getLogger(__name__)

_LOCK = "lock"
_ATTEMPTS = 3


class _PartGone(Exception):
    """The part of a shard is missing, although it was counted."""


def open_or_count(
    home: Path,
    manifest: Manifest,
    digest: str,
    *,
    image_wrap: tuple[int, int],
    count: Callable[[PartFiles, list[int]], None],
) -> TokenColumns:
    """Map the token columns of a dataset, counting them first where that was not done.

    One process counts, others that share the folder wait for it. If it dies, however it does, one
    of them continues with the shards that are missing. Shards that a dataset had before it grew are
    not counted again. If `home` cannot be written, the user's cache folder is used. `count` writes
    the parts of the shards whose numbers it is given; those that it wrote before an error stay.
    Raises `IndexMismatch` if the files hold something else than their names say.
    """
    for _ in range(_ATTEMPTS):
        found = open_tokens(home, manifest, digest)
        if found is not None:
            return found
        # The system releases the lock of a process that died.
        folder, lock = open_or_build(
            home,
            token_folder(digest),
            manifest.fingerprint,
            "token counts",
            open_at=lambda _: None,
            build=lambda folder: (folder, lock_file(_work_of(folder) / _LOCK, "counts tokens")),
        )
        with lock:
            work = _work_of(folder)
            if open_tokens(home, manifest, digest) is None:  # another may have been quicker
                parts = PartFiles(work, digest)
                try:
                    _carry_over(home / folder.name, manifest, parts)
                    count(parts, parts.missing(manifest.shards))
                    _publish(folder, parts, manifest, image_wrap)
                except BaseException:
                    if not len(parts):
                        shutil.rmtree(work, ignore_errors=True)
                    raise
            shutil.rmtree(work, ignore_errors=True)
    found = open_tokens(home, manifest, digest)
    if found is None:
        raise IndexMismatch(
            f"{home}: token counts do not last there: their files are gone or damaged as soon as "
            "they are written; check the disk, or copy the dataset to another one"
        )
    return found


def _work_of(folder: Path) -> Path:
    """Return where the parts of columns are kept until all are there."""
    return folder.with_name(f".{folder.name}")


def _carry_over(folder: Path, manifest: Manifest, parts: PartFiles) -> None:
    """Make parts of the columns of another content, for the shards that both have."""
    if (columns := map_tokens(folder, parts.digest)) is None:
        return
    try:
        failures: dict[str, list[TextFailure]] = {}
        for line in columns.failures():
            failures.setdefault(line.pop("shard"), []).append(TextFailure(**line))
        wanted = {shard.index_sha256 for shard in manifest.shards}
        start = 0
        for entry in json.loads((folder / SHARDS).read_bytes()):
            shard = Shard(**entry)
            stop = start + shard.samples
            if shard.index_sha256 in wanted and parts.read(shard) is None:
                parts.write(shard, _cut(columns, start, stop, tuple(failures.get(shard.name, ()))))
            start = stop
    except IndexMismatch as error:
        logger.warning("%s", str(error).partition(";")[0])


def _cut(
    columns: TokenColumns, start: int, stop: int, failures: tuple[TextFailure, ...]
) -> TokenPart:
    places = columns.sample_image_at[start : stop + 1]
    spans = columns.sample_label[start : stop + 1]
    return TokenPart(
        text_tokens=columns.text_tokens[start:stop],
        label_tokens=columns.label_tokens[start:stop],
        places=np.diff(places),
        image_at=columns.image_at[places[0] : places[-1]],
        spans=np.diff(spans),
        label_start=columns.label_start[spans[0] : spans[-1]],
        label_stop=columns.label_stop[spans[0] : spans[-1]],
        failures=failures,
    )


def _publish(
    folder: Path, parts: PartFiles, manifest: Manifest, image_wrap: tuple[int, int]
) -> None:
    """Write the columns out of their parts into `folder`, which appears by rename.

    Nothing waits for the disk: what a power cut leaves differs in size, and is rebuilt.
    Where locks do not reach from machine to machine, another process may have been quicker, and
    have taken the parts away; then this does nothing.
    """

    def is_current() -> bool:
        return map_tokens(folder, parts.digest, fingerprint=manifest.fingerprint) is not None

    work = _work_of(folder)
    try:
        with new_folder(folder, is_current, within=work) as temporary:
            failed = _consolidate(temporary, parts, manifest)
            shards = [asdict(shard) for shard in manifest.shards]
            (temporary / SHARDS).write_text(json.dumps(shards), encoding="utf-8")
            about = {
                "version": VERSION,
                "digest": parts.digest,
                "fingerprint": manifest.fingerprint,
                "samples": manifest.samples,
                "failed": failed,
                "image_wrap": image_wrap,
                "checksums_crc32": write_sums(temporary, FILES),
            }
            write_about(temporary / ABOUT, about, compared=(FAILURES, SHARDS))
    except _PartGone:
        logger.warning("%s: a part of the count is gone or damaged; looking again", work)
        return
    if failed:
        logger.warning(
            "%s of %s samples have a text that cannot be used; %s says why",
            f"{failed:,}",
            f"{manifest.samples:,}",
            folder / FAILURES,
        )


def _consolidate(folder: Path, parts: PartFiles, manifest: Manifest) -> int:
    """Write all columns; return the number of failures."""
    failed = 0
    with (
        npy_files(folder, DTYPES, OFFSETS) as files,
        (folder / FAILURES).open("w", encoding="utf-8") as failures,
    ):
        for shard in manifest.shards:
            part = parts.read(shard)
            if part is None:
                raise _PartGone
            for name in DTYPES.keys() - OFFSETS.keys():
                files[name].append(getattr(part, name))
            for name, counts in OFFSETS.items():
                files[name].append_ends(getattr(part, counts))
            for failure in part.failures:
                line = {"shard": shard.name, **failure._asdict()}
                kept = {name: value for name, value in line.items() if value}
                failures.write(json.dumps(kept) + "\n")
            failed += len(part.failures)
    return failed
