"""Progress of an unfinished pack, so that the same command can finish it."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from datapipe.errors import PackError
from datapipe.index.columns import COLUMNS, open_columns
from datapipe.index.files.crc32 import crc32, prefix_sums
from datapipe.index.files.lock import is_at, try_lock
from datapipe.index.files.sealed_json import seal, unseal_lines
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
from datapipe.pack.rejects import RejectCounts
from datapipe.pack.writers.shards import writing
from datapipe.remote.upload import RemoteTarget
from datapipe.report.table import counted

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


class JournalLines(NamedTuple):
    """Lines of a journal, up to the first that a crash tore or that is damaged."""

    path: Path
    head: dict[str, Any]  # what was begun, with its options; empty without a whole line
    entries: list[dict[str, Any]]  # one for each finished shard
    ends: list[int]  # offset where each line ends, that of `head` first
    is_damaged: bool  # more is in the file

    def count_whole(self, faults: Iterable[Path | None], work: str) -> int:
        """Return how many shards, from the first on, are without a fault; a warning says so.

        `faults` gives a file of each shard that is not as it was noted, None if all are. `work` is
        what was interrupted, such as "packing".
        """
        done = 0
        fault = self.path if self.is_damaged else None
        for found in faults:
            if found is not None:
                fault = found
                break
            done += 1
        if fault is not None:
            logger.warning("%s is damaged; %s everything after shard %d again", fault, work, done)
        return done


def read_lines(path: Path) -> JournalLines:
    """Return what stands in a journal; nothing if there is none."""
    content = path.read_bytes() if path.exists() else b""
    lines, ends = unseal_lines(content)
    head, *entries = lines or [{}]
    return JournalLines(path, head, entries, ends, len(content) > sum(ends[-1:]))


def changed_file(
    path: Path, noted: Sequence[tuple[int, int]], *, start: int = 0
) -> list[Path | None]:
    """Return for each shard the path of a file that grew with them if it has changed, else None.

    `noted` has its bytes from `start` on and their checksum, as they were after each shard.
    """
    sums = prefix_sums(path, [end for end, _ in noted], start=start)
    return [None if now == crc else path for now, (_, crc) in zip(sums, noted, strict=True)]


def changed_index(folder: Path, shard: Shard) -> Path | None:
    """Return the path of a shard's index if it is missing or has changed, else None."""
    index = folder / shard.index
    is_whole = index.exists() and file_sha256(index) == shard.index_sha256
    return None if is_whole else index


def begun_on(out: Path) -> str | None:
    """Return the fingerprint of the dataset that an interrupted pack in `out` appends to.

    It is "" for a pack that makes a new dataset, and None if no pack was interrupted.
    """
    with suppress(OSError):
        base: str | None = read_lines(out / UNFINISHED / _JOURNAL).head.get("base")
        return base
    return None


class ShardJournal:
    """Journal with a sealed line for each finished shard, and the file of rejects beside it.

    Both are open to append to. What was written after the first `done` shards of `found` is cut
    off: `last` has the number of their rejects, and the bytes and checksum of these. `head` is the
    first line of a new journal. `out` is the output that errors name.
    """

    def __init__(
        self,
        out: Path,
        found: JournalLines,
        done: int,
        head: Mapping[str, Any],
        rejects: Path,
        last: tuple[int, int, int],
    ) -> None:
        self.out = out
        self.rejects_path = rejects
        number, self.rejects_bytes, self.rejects_crc32 = last
        self.rejects = RejectCounts(number=number)
        with ExitStack() as opened:
            self._rejects = opened.enter_context(rejects.open("ab"))
            self._rejects.truncate(self.rejects_bytes)
            self._journal = opened.enter_context(found.path.open("ab"))
            self._journal.truncate(found.ends[done] if done else 0)
            if not done:
                self.note(head)
            self._opened = opened.pop_all()

    def reject(self, reject: Reject) -> None:
        line = reject.line()
        with writing(self.out):
            self._rejects.write(line)
        self.rejects_bytes += len(line)
        self.rejects_crc32 = crc32(line, self.rejects_crc32)
        self.rejects.add(reject)

    def note(self, line: Mapping[str, Any]) -> None:
        """Append a line to the journal, and bring it to the disk, the rejects before it."""
        with writing(self.out):
            self.sync_rejects()
            self._journal.write(seal(line).encode() + b"\n")
            _sync(self._journal)

    def sync_rejects(self) -> None:
        _sync(self._rejects)

    def close(self) -> None:
        """Close both files; what matters of them is on the disk already."""
        with suppress(OSError):
            self._opened.close()


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


class Journal(ShardJournal):
    """Journal of a pack, under `OUT/.pack`, of this run and interrupted ones.

    `base` is the finished dataset that is appended to. `last` is the checkpoint of the last of
    `shards`, and `rejects` counts inputs after it too. Tars are at `target`, or in `out` without
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
        head = {"options": options, "base": base.fingerprint if base else ""}
        found, done = read_lines(self.work / _JOURNAL), 0
        if found.head.get("base", head["base"]) == head["base"]:  # else left by a finished pack
            done = found.count_whole(self._faults(found.entries), "packing")
        if done:  # else nothing is done that other options could contradict
            same_options(out, found.head["options"], options)
        entries = found.entries[:done]
        self.shards = [Shard(**entry.pop("shard")) for entry in entries]
        self.last = Checkpoint(**entries[-1]) if done else Checkpoint()
        rejects = self.last.rejected, self.last.rejects_bytes, self.last.rejects_crc32
        super().__init__(out, found, done, head, self.work / REJECTS, rejects)

    def _faults(self, entries: Sequence[dict[str, Any]]) -> Iterator[Path | None]:
        """Yield for each shard a file that is not as it was when it was finished, or None.

        Sizes, indexes and rejects are compared; members are when they are read.
        """
        noted = [(entry["rejects_bytes"], entry["rejects_crc32"]) for entry in entries]
        rejects = changed_file(self.work / REJECTS, noted)
        for entry, fault in zip(entries, rejects, strict=True):
            yield self._changed(Shard(**entry["shard"])) or fault

    def _changed(self, shard: Shard) -> Path | None:
        """Return the file of a finished shard that is missing or has changed, else None."""
        path = self.out / shard.name
        if self.target is not None:
            size = self.target.size_now(shard.name)
        else:
            size = path.stat().st_size if path.exists() else None
        return changed_index(self.out, shard) if size == shard.bytes else path

    @property
    def number(self) -> int:
        """Number of the next shard."""
        return len(self.shards) + (len(self._base.shards) if self._base else 0)

    def checkpoint(self, inputs: InputCount) -> Checkpoint:
        """Return the current state of the pack, to be committed once the shard is in place."""
        return Checkpoint(
            inputs=inputs.number,
            rejected=self.rejects.number,
            rejects_bytes=self.rejects_bytes,
            rejects_crc32=self.rejects_crc32,
            saved_bytes=inputs.saved_bytes,
            digest=inputs.digest,
        )

    def commit(self, shard: Shard, checkpoint: Checkpoint) -> None:
        """Record durably that a shard is in place, with all inputs up to its last."""
        self.note({"shard": asdict(shard), **asdict(checkpoint)})
        self.shards.append(shard)
        self.last = checkpoint
        self._placed(shard)

    def finish(self, inputs: InputCount, options: dict[str, Any]) -> Manifest:
        """Publish the dataset with what this pack made of these inputs; return its manifest."""
        end = self.checkpoint(inputs)
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
            self.sync_rejects()
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
        if begun_on(out) != manifest.fingerprint:
            remove_working_folder(out)


def same_options(out: Path | str, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to continue with other options than the output was started with."""
    different = list(_differences(before, now))
    if different:
        raise PackError(
            f"{out} was started with other options ({'; '.join(different)}); use those, or give a "
            "new folder"
        )


def _differences(before: dict[str, Any], now: dict[str, Any], of: str = "") -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        then, given = before.get(name), now.get(name)
        if isinstance(then, dict) and isinstance(given, dict):
            yield from _differences(then, given, f"{of}{name}.")
        elif then != given:
            yield f"{of}{name}: {then!r} before, {given!r} now"


def same_inputs(out: Path | str, inputs: InputCount, number: int, digest: str) -> None:
    """Refuse to continue from raw data that is not what the output was made from."""
    if (inputs.number, inputs.digest) != (number, digest):
        now = "others" if inputs.number == number else f"{inputs.number:,}"
        raise PackError(
            f"{out}: the raw data is not what this was packed from ({counted(number, 'input')} "
            f"then, now {now}); give a new folder, or the raw data as it was"
        )
