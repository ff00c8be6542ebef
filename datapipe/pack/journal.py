"""What an unfinished pack has done so far, so that the same command can finish it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from datapipe.errors import PackError
from datapipe.index.columns import COLUMNS
from datapipe.index.manifest import (
    MANIFEST,
    UNFINISHED,
    Manifest,
    Shard,
    fsync_folder,
    read_manifest,
)
from datapipe.pack.raw import InputCount, Reject

REJECTS = "rejects.jsonl"
_JOURNAL = "journal.jsonl"
_LOCK = "lock"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Where a pack stood when a shard was finished.

    Attributes:
        shard: the one that was finished.
        inputs: how many inputs it and those before it account for.
        rejected: how many of them were rejected.
        rejects_bytes: length of the rejects file then.
        digest: of these inputs, to notice when the raw data has changed.
    """

    shard: Shard
    inputs: int
    rejected: int
    rejects_bytes: int
    digest: str


class Journal:
    """Appends a line per finished shard under `OUT/.pack`, and knows what stood there before."""

    def __init__(self, out: Path, options: dict[str, Any]) -> None:
        self.out = out
        self.work = out / UNFINISHED
        self.checkpoints = _read_journal(self.work / _JOURNAL, options)
        last = self.checkpoints[-1] if self.checkpoints else None
        self.inputs = last.inputs if last else 0
        self.rejected = last.rejected if last else 0
        self.digest = last.digest if last else ""
        rejects = self.work / REJECTS
        if not rejects.exists() and (out / REJECTS).exists():
            (out / REJECTS).replace(rejects)  # published, then interrupted before the manifest
        self._rejects = rejects.open("ab")
        self._rejects.truncate(last.rejects_bytes if last else 0)
        self._rejects.seek(0, os.SEEK_END)  # truncating leaves the position where the end was
        self._file = (self.work / _JOURNAL).open("ab")
        if not self.checkpoints:
            self._file.truncate(0)
            self._append({"options": options})

    @property
    def shards(self) -> list[Shard]:
        return [checkpoint.shard for checkpoint in self.checkpoints]

    def reject(self, reject: Reject) -> None:
        """Write one rejected input down."""
        line = {key: value for key, value in reject._asdict().items() if value}
        text = json.dumps(line, ensure_ascii=False) + "\n"
        self._rejects.write(text.encode("utf-8", "backslashreplace"))
        self.rejected += 1

    def commit(self, shard: Shard, inputs: InputCount) -> None:
        """Note durably that a shard is in place, and all inputs up to its last are dealt with."""
        self._sync_rejects()
        checkpoint = Checkpoint(
            shard=shard,
            inputs=inputs.number,
            rejected=self.rejected,
            rejects_bytes=self._rejects.tell(),
            digest=inputs.digest,
        )
        self._append(asdict(checkpoint))
        self.checkpoints.append(checkpoint)

    def close(self) -> None:
        self._rejects.close()
        self._file.close()

    def publish_rejects(self) -> None:
        """Put the rejects file in place beside the shards."""
        self._sync_rejects()
        (self.work / REJECTS).replace(self.out / REJECTS)
        fsync_folder(self.out)

    def _sync_rejects(self) -> None:
        self._rejects.flush()
        os.fsync(self._rejects.fileno())

    def _append(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def refuse_foreign(out: Path) -> None:
    """Refuse a folder that holds something else than a pack of ours.

    Raises:
        PackError: it does.
    """
    if out.is_dir() and not (out / UNFINISHED).exists() and not (out / MANIFEST).exists():
        found = sorted(path.name for path in out.iterdir())
        if found:
            raise PackError(
                f"{out} is neither empty nor an unfinished pack (found: {', '.join(found[:5])}); "
                "give a new folder"
            )


@contextmanager
def working_folder(out: Path) -> Iterator[Path]:
    """Make `OUT/.pack` and hold it against a second pack; the lock dies with its holder.

    Raises:
        PackError: another pack works there, or the folder holds something else.
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
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PackError(f"{out}: another pack is writing here; wait for it to end") from None
        yield work


def remove_leftovers(out: Path) -> None:
    """Remove what a crash may have left of columns and manifest under temporary names."""
    for path in out.glob(f".{COLUMNS}.*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in out.glob(f".{MANIFEST}.tmp-*"):
        path.unlink(missing_ok=True)


def remove_working_folder(out: Path) -> None:
    shutil.rmtree(out / UNFINISHED, ignore_errors=True)


def same_options(out: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to go on with other options than the output was started with.

    Raises:
        PackError: they differ; the message shows how.
    """
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


def finished(out: Path, options: dict[str, Any]) -> Manifest | None:
    """The manifest of `out` if it is already packed, with these very options.

    Raises:
        PackError: it is packed with others.
    """
    if not (out / MANIFEST).exists():
        return None
    manifest = read_manifest(out)
    same_options(out, manifest.options, options)
    return manifest


def same_inputs(out: Path, inputs: InputCount, number: int, digest: str) -> None:
    """Refuse to go on from raw data that is not what the output was made from.

    Raises:
        PackError: `inputs` are not `number` inputs with this digest.
    """
    if (inputs.number, inputs.digest) != (number, digest):
        raise PackError(
            f"{out}: the raw data is not what this was packed from ({number:,} inputs then, now "
            f"{'others' if inputs.number == number else f'{inputs.number:,}'}); give a new folder, "
            "or the raw data as it was"
        )


def _read_journal(path: Path, options: dict[str, Any]) -> list[Checkpoint]:
    if not path.exists():
        return []
    lines = []
    content = path.read_bytes()
    for line in content.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break  # torn by a crash; what it would have said is done again
        lines.append(json.loads(line))
    if len(content) != (whole := sum(len(line) for line in content.splitlines(True)[: len(lines)])):
        os.truncate(path, whole)
    if not lines:
        return []
    same_options(path.parent.parent, lines[0]["options"], options)
    return [Checkpoint(**{**line, "shard": Shard(**line["shard"])}) for line in lines[1:]]
