"""Progress of an unfinished pack, so that the same command can finish it."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from datapipe.errors import PackError
from datapipe.index.columns import COLUMNS, open_columns
from datapipe.index.files.crc32 import prefix_sums
from datapipe.index.files.journal_files import JournalFiles
from datapipe.index.files.lock import is_at, try_lock
from datapipe.index.files.sealed_json import unseal_lines
from datapipe.index.manifest import (
    MANIFEST,
    UNFINISHED,
    Contribution,
    Manifest,
    Shard,
    fsync_folder,
    write_manifest,
)
from datapipe.index.parquet import file_sha256
from datapipe.pack.input.raw_sample import InputCount, Reject
from datapipe.pack.writers.shards import writing
from datapipe.remote.upload import RemoteTarget

logger = logging.getLogger(__name__)

REJECTS = "rejects.jsonl"
_JOURNAL = "journal.jsonl"
_LOCK = "lock"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """State of a pack when a shard was finished."""

    inputs: int = 0  # how many inputs the shards so far account for
    rejected: int = 0  # how many of them were rejected
    rejects_bytes: int = 0  # length of the file of its rejects then
    rejects_crc32: int = 0  # checksum of this file then
    saved_bytes: int = 0  # by which shrinking made their images smaller
    digest: str = ""  # of these inputs, to notice when the raw data has changed


class Journal:
    """File under `OUT/.pack` with a line per finished shard, of this run and interrupted ones.

    `base` is the finished dataset that is appended to. `last` is the checkpoint of the last of
    `shards`, and `rejected` counts inputs after it too. Tars are at `target`, or in `out` without
    it. `placed` is called with every shard that is in place.
    """

    def __init__(
        self,
        out: Path,
        options: dict[str, Any],
        base: Manifest | None = None,
        target: RemoteTarget | None = None,
        placed: Callable[[Shard], None] = lambda shard: None,
    ) -> None:
        self.out = out
        self._base = base
        self.target = target
        self._placed = placed
        self.work = out / UNFINISHED
        fingerprint = base.fingerprint if base else ""
        begun = read_journal(out)
        if begun and begun.base != fingerprint:  # left by a pack that was finished
            begun = None
        done = self._count_whole(begun) if begun else 0
        if begun and done:
            same_options(out, begun.options, options)
            self.shards, self.last = list(begun.shards[:done]), begun.checkpoints[done - 1]
        else:  # nothing is done that other options could contradict
            begun = None
            self.shards, self.last = [], Checkpoint()
        self.rejected = self.last.rejected
        self._files = JournalFiles(
            self.work / REJECTS,
            self.work / _JOURNAL,
            rejects_size=self.last.rejects_bytes,
            rejects_crc32=self.last.rejects_crc32,
            journal_size=begun.ends[done] if begun else 0,
            head=None if begun else {"options": options, "base": fingerprint},
        )

    def _count_whole(self, begun: InterruptedPack) -> int:
        """Return how many shards, from the first on, are as they were when they were finished.

        Sizes, indexes and rejects are compared; members are when they are read.
        """
        path = self.work / REJECTS
        sums = prefix_sums(path, [checkpoint.rejects_bytes for checkpoint in begun.checkpoints])
        fault: Path | None = None
        done = 0
        for shard, checkpoint, crc in zip(begun.shards, begun.checkpoints, sums, strict=True):
            fault = self._changed(shard) or (path if crc != checkpoint.rejects_crc32 else None)
            if fault is not None:
                break
            done += 1
        if fault is None and begun.size > begun.ends[-1]:
            fault = self.work / _JOURNAL
        if fault is not None:
            logger.warning("%s is damaged; packing everything after shard %d again", fault, done)
        return done

    def _changed(self, shard: Shard) -> Path | None:
        """Return the file of a finished shard that is missing or has changed, else None."""
        index = self.out / shard.index
        if self._size_of(shard.name) != shard.bytes:
            return self.out / shard.name
        is_whole = index.exists() and file_sha256(index) == shard.index_sha256
        return None if is_whole else index

    def _size_of(self, name: str) -> int | None:
        if self.target is not None:
            return self.target.size_now(name)
        path = self.out / name
        return path.stat().st_size if path.exists() else None

    @property
    def number(self) -> int:
        """Number of the next shard."""
        return len(self.shards) + (len(self._base.shards) if self._base else 0)

    def reject(self, reject: Reject) -> None:
        with writing(self.out):
            self._files.reject(reject.line())
        self.rejected += 1

    def checkpoint(self, inputs: InputCount, saved_bytes: int) -> Checkpoint:
        """Return the current state of the pack, to be committed once the shard is in place."""
        return Checkpoint(
            inputs=inputs.number,
            rejected=self.rejected,
            rejects_bytes=self._files.rejects_size,
            rejects_crc32=self._files.rejects_crc32,
            saved_bytes=saved_bytes,
            digest=inputs.digest,
        )

    def commit(self, shard: Shard, checkpoint: Checkpoint) -> None:
        """Record durably that a shard is in place, with all inputs up to its last."""
        with writing(self.out):
            self._files.note({"shard": asdict(shard), **asdict(checkpoint)})
        self.shards.append(shard)
        self.last = checkpoint
        self._placed(shard)

    def finish(self, inputs: InputCount, saved_bytes: int, options: dict[str, Any]) -> Manifest:
        """Publish the dataset with what this pack made of these inputs; return its manifest."""
        end = self.checkpoint(inputs, saved_bytes)
        part = Contribution(
            shards=len(self.shards),
            inputs=end.inputs,
            inputs_sha256=end.digest,
            rejected=end.rejected,
            rejects_bytes=end.rejects_bytes,
            saved_bytes=end.saved_bytes,
            options=options,
        )
        before = self._base or Manifest(shards=(), parts=())
        manifest = Manifest(shards=(*before.shards, *self.shards), parts=(*before.parts, part))
        with writing(self.out):
            self._files.sync_rejects()
            self._publish_rejects(sum(part.rejects_bytes for part in before.parts))
            publish(self.out, manifest)
        return manifest

    def _publish_rejects(self, noted: int) -> None:
        """Put the rejects of this pack in place, behind those of earlier packs: `noted` bytes."""
        published, joined = self.out / REJECTS, self.work / "joined-rejects.jsonl"
        joined.unlink(missing_ok=True)
        if noted and published.exists():
            shutil.copyfile(published, joined)
        with joined.open("ab") as file, (self.work / REJECTS).open("rb") as own:
            if file.tell() < noted:
                logger.warning(
                    "%s holds %s bytes of the %s that earlier packs wrote; the rest stays missing",
                    *(published, f"{file.tell():,}", f"{noted:,}"),
                )
            else:  # a pack that was interrupted here has put its own behind them
                file.truncate(noted)
            shutil.copyfileobj(own, file)
            file.flush()
            os.fsync(file.fileno())
        joined.replace(published)

    def close(self) -> None:
        self._files.close()


def refuse_foreign(out: Path) -> None:
    """Refuse a file, and a folder that holds something else than a pack of ours."""
    if out.exists() and not out.is_dir():
        raise PackError(f"{out} is a file; give a folder")
    if out.is_dir() and not (out / UNFINISHED).exists() and not (out / MANIFEST).exists():
        found = sorted(path.name for path in out.iterdir())
        if found:
            raise PackError(
                f"{out} is neither empty nor an unfinished pack (found: {', '.join(found[:5])}); "
                "give a new folder"
            )


@contextmanager
def working_folder(out: Path, *, lock_check: bool = True) -> Iterator[Path]:
    """Make `OUT/.pack` and lock it against a second pack until this process ends.

    PackError if another pack works there, or the folder holds something else; with `lock_check`
    also if the file system has no locks, such as some mounts of NFS.
    """
    work = out / UNFINISHED
    try:
        refuse_foreign(out)
        work.mkdir(parents=True, exist_ok=True)
        file = (work / _LOCK).open("w")
    except OSError as error:
        raise PackError(f"{out}: cannot be written: {error.strerror}") from error
    with file:
        try:
            # A pack that ended in between has removed the file that is locked here.
            if not (try_lock(file) and is_at(file, work / _LOCK)):
                raise PackError(f"{out}: another pack is writing here; wait for it to end")
        except OSError as error:
            problem = f"{out}: files here cannot be locked ({error.strerror})"
            if lock_check:
                raise PackError(
                    f"{problem}, so a second pack could write here too; give a folder on another "
                    "file system, or --no-lock-check if nothing else writes here"
                ) from error
            logger.warning("%s; a second pack would not be noticed", problem)
        yield work


def publish(out: Path, manifest: Manifest) -> None:
    """Write columns and manifest of a dataset whose files are in place, and end its pack."""
    fsync_folder(out)
    # A crash may have left temporary files of both.
    for path in out.glob(f".{COLUMNS}.*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in out.glob(f".{MANIFEST}.tmp-*"):
        path.unlink(missing_ok=True)
    open_columns(out, manifest)
    write_manifest(out, manifest)
    remove_working_folder(out)


def remove_working_folder(out: Path) -> None:
    shutil.rmtree(out / UNFINISHED, ignore_errors=True)


def remove_finished(out: Path, manifest: Manifest, *, lock_check: bool) -> None:
    """Remove the working folder of the finished pack, unless another pack works there."""
    if not (out / UNFINISHED).exists():
        return
    with suppress(PackError), working_folder(out, lock_check=lock_check):
        begun = read_journal(out)
        if not begun or begun.base != manifest.fingerprint:
            remove_working_folder(out)


def same_options(out: Path | str, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to continue with other options than the output was started with."""
    different = [
        f"{name}: {before.get(name)!r} before, {now.get(name)!r} now"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if different:
        raise PackError(
            f"{out} was started with other options ({'; '.join(different)}); use those, or give a "
            "new folder"
        )


def same_inputs(out: Path | str, inputs: InputCount, number: int, digest: str) -> None:
    """Refuse to continue from raw data that is not what the output was made from."""
    if (inputs.number, inputs.digest) != (number, digest):
        raise PackError(
            f"{out}: the raw data is not what this was packed from ({number:,} inputs then, now "
            f"{'others' if inputs.number == number else f'{inputs.number:,}'}); give a new folder, "
            "or the raw data as it was"
        )


@dataclass(frozen=True, kw_only=True)
class InterruptedPack:
    """State of an interrupted pack, as its journal has it."""

    options: dict[str, Any]  # it was started with
    base: str  # fingerprint of the dataset that it appends to, empty where it does not
    # `shards`, `checkpoints`: finished, and where the pack stood after each
    shards: list[Shard]
    checkpoints: list[Checkpoint]
    ends: list[int]  # offsets where the journal's lines end: of the first, and of each shard
    size: int  # bytes of the journal, damaged ones included


def read_journal(out: Path) -> InterruptedPack | None:
    """Return what stands in the journal below `out`, up to damage; None where there is nothing."""
    try:
        content = (out / UNFINISHED / _JOURNAL).read_bytes()
    except OSError:
        return None
    lines, ends = unseal_lines(content)
    if not lines or "base" not in lines[0]:
        if content:
            path = out / UNFINISHED / _JOURNAL
            logger.warning("%s is damaged; packing starts over", path)
        return None
    head, *entries = lines
    return InterruptedPack(
        options=head["options"],
        base=head["base"],
        shards=[Shard(**entry.pop("shard")) for entry in entries],
        checkpoints=[Checkpoint(**entry) for entry in entries],
        ends=ends,
        size=len(content),
    )
