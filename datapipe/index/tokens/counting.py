"""Counting of tokens by one process at a time; an interrupted count is continued.

The counts of the samples of one shard are a part. Parts are in files until all are there. A file is
named after the shard's index, so an interrupted count continues with the shards that are missing,
and one of a dataset that has grown counts the new ones.
"""

from __future__ import annotations

import io
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from datapipe.array_types import Int32, Int64
from datapipe.errors import IndexMismatch
from datapipe.index.files.block_checksums import write_sums
from datapipe.index.files.derived import (
    new_folder,
    open_or_build,
    read_summed,
    write_about,
    write_summed,
)
from datapipe.index.files.lock import lock_file
from datapipe.index.files.npy import npy_files
from datapipe.index.manifest import Manifest, Shard
from datapipe.index.tokens import columns as token_columns
from datapipe.index.tokens.columns import ABOUT, DTYPES, FAILURES, OFFSETS, SHARDS, TokenColumns

logger = logging.getLogger(__name__)

_LOCK = "lock"
_ATTEMPTS = 3

_ARRAYS = {OFFSETS.get(name, name): dtype for name, dtype in DTYPES.items()}
_ABOUT = "about"
_SUFFIX = ".npz"


class TextFailure(NamedTuple):
    """A sample whose text cannot be used."""

    key: str  # of the sample
    reason: str  # why, for a person
    member: str = ""  # the file at fault, where it is one


@dataclass(frozen=True, kw_only=True)
class TokenPart:
    """Token counts of n successive samples."""

    # int32 [n], tokens without those of images; -1 where the text cannot be used
    text_tokens: Int32
    label_tokens: Int32  # int32 [n], tokens that are predicted
    places: Int64  # int64 [n], how many items of `image_at` each sample has
    image_at: Int32  # int32, number of text tokens before each image
    spans: Int64  # int64 [n], how many items of `label_start` and `label_stop` each sample has
    # `label_start`, `label_stop`: int32, runs of trained text tokens
    label_start: Int32
    label_stop: Int32
    failures: tuple[TextFailure, ...] = ()  # in the order of the samples

    def __len__(self) -> int:
        return len(self.text_tokens)


def join_parts(parts: Sequence[TokenPart]) -> TokenPart:
    """Return parts that follow each other as one."""
    arrays: dict[str, Any] = {
        name: np.concatenate([np.zeros(0, dtype), *(getattr(part, name) for part in parts)])
        for name, dtype in _ARRAYS.items()
    }
    failures = tuple(failure for part in parts for failure in part.failures)
    return TokenPart(**arrays, failures=failures)


class PartFiles:
    """Parts of a count, one file per shard; `digest` names the tokenizer and the template."""

    def __init__(self, folder: Path, digest: str) -> None:
        self._folder = folder
        self.digest = digest

    def __len__(self) -> int:
        """Return the number of files, usable or not."""
        return sum(1 for _ in self._folder.glob(f"*{_SUFFIX}"))

    def missing(self, shards: Iterable[Shard]) -> list[int]:
        """Return the numbers of the shards that have no part that can be used."""
        return [number for number, shard in enumerate(shards) if self.read(shard) is None]

    def read(self, shard: Shard) -> TokenPart | None:
        """Return the part of a shard; None if it is missing, torn or of another count.

        Every byte is compared with a checksum before any is parsed.
        """
        if (body := read_summed(self._path(shard))) is None:
            return None
        with np.load(io.BytesIO(body), allow_pickle=False) as file:
            about = json.loads(file[_ABOUT].tobytes())
            if (about["version"], about["digest"]) != (token_columns.VERSION, self.digest):
                return None
            arrays = {name: file[name] for name in _ARRAYS}
        failures = tuple(TextFailure(*failure) for failure in about["failures"])
        part = TokenPart(**arrays, failures=failures)
        return part if len(part) == shard.samples else None

    def write(self, shard: Shard, part: TokenPart) -> None:
        """Keep the part of a shard. Nothing waits for the disk: a torn file is not read."""
        assert len(part) == shard.samples
        about = {"version": token_columns.VERSION, "digest": self.digest, "failures": part.failures}
        arrays: dict[str, Any] = {name: getattr(part, name) for name in _ARRAYS}
        arrays[_ABOUT] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        file = io.BytesIO()
        np.savez(file, **arrays)
        write_summed(self._path(shard), file.getvalue())

    def _path(self, shard: Shard) -> Path:
        return self._folder / f"{shard.index_sha256[:32]}{_SUFFIX}"


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
    opened = partial(token_columns.open_tokens, home, manifest, digest)
    for _ in range(_ATTEMPTS):
        if (found := opened()) is not None:
            return found
        # The system releases the lock of a process that died.
        folder, lock = open_or_build(
            home,
            token_columns.token_folder(digest),
            manifest.fingerprint,
            "token counts",
            open_at=lambda _: None,
            build=lambda folder: (folder, lock_file(_work_of(folder) / _LOCK, "counts tokens")),
        )
        with lock:
            work = _work_of(folder)
            if opened() is None:  # another may have been quicker
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
    if (found := opened()) is None:
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
    if (columns := token_columns.map_tokens(folder, parts.digest)) is None:
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
    fingerprint = manifest.fingerprint
    current = partial(token_columns.map_tokens, folder, parts.digest, fingerprint=fingerprint)
    work = _work_of(folder)
    try:
        with new_folder(folder, lambda: current() is not None, within=work) as temporary:
            failed = _consolidate(temporary, parts, manifest)
            shards = [asdict(shard) for shard in manifest.shards]
            (temporary / SHARDS).write_text(json.dumps(shards), encoding="utf-8")
            about = {
                "version": token_columns.VERSION,
                "digest": parts.digest,
                "fingerprint": fingerprint,
                "samples": manifest.samples,
                "failed": failed,
                "image_wrap": image_wrap,
                "checksums_crc32": write_sums(temporary, token_columns.FILES),
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
