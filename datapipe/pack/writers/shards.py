"""Writer of tar shards and their indexes, cut at a size, each appearing whole by rename."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from datapipe.array_types import Int64
from datapipe.errors import PackError
from datapipe.index.manifest import Shard, fsync_folder
from datapipe.index.parquet import to_table, write_index
from datapipe.index.rows import Rows
from datapipe.pack.writers.direct_file import DirectFile, TaskThread
from datapipe.pack.writers.ustar import END


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Raise errors of a disk as one that names the output and the remedy."""
    try:
        yield
    except OSError as error:
        raise PackError(
            f"{out}: writing failed: {error.strerror or error}; make room or repair the disk and "
            "run the same command again, finished shards are kept"
        ) from error


_ATTEMPT = "attempt-"
_COMPACT = 8192  # rows that are kept as Python's objects, which take ten times the memory


@dataclass(frozen=True, slots=True)
class ShardSize:
    """End of a shard: at so many samples, or before so many bytes are exceeded."""

    samples: int | None = None
    bytes: int | None = None

    def is_full(self, samples: int, size: int, next_size: int) -> bool:
        """Return whether a sample of `next_size` bytes belongs into the next shard."""
        if self.samples is not None:
            return samples >= self.samples
        assert self.bytes is not None
        return samples > 0 and size + next_size + len(END) > self.bytes

    def room(self, samples: int, size: int, ends: Int64) -> int:
        """Return how many of the next samples belong into a shard that holds `samples`.

        They end at `ends[1:]`, int64 [n + 1], counted like `ends[0]`, their start. An empty shard
        has room for one at least.
        """
        if self.samples is not None:
            room = self.samples - samples
        else:
            assert self.bytes is not None
            limit = ends[0] + self.bytes - size - len(END)
            room = int(ends.searchsorted(limit, side="right")) - 1
        return min(max(room, 0 if samples else 1), len(ends) - 1)


class ShardWriter:
    """Writer of laid-out samples, in the order given; the first shard has the number `number`.

    A shard is written under a temporary name in `work` and renamed into `out` once it and its index
    are on disk. One thread writes, and a second writes the index and renames, so that the disk does
    not wait for it.
    """

    def __init__(self, out: Path, work: Path, number: int = 0) -> None:
        self._out = out
        self._work = work
        self._number = number
        self._thread = TaskThread("datapipe-pack-writer")
        self._finisher = TaskThread("datapipe-pack-finisher")
        self._file = DirectFile(self._thread)
        self._rows = Rows()
        self._tables: list[pa.Table] = []
        self.samples = 0
        self.bytes = 0

    def write(self, data: memoryview, rows: Rows, start: int, stop: int, origin: int) -> None:
        """Append samples, whose rows are `start` to `stop`; offsets are counted from `origin`."""
        with writing(self._out):
            self._begin()
            self._rows.extend(rows, start, stop, self.bytes - origin)
            self.samples += stop - start
            self.bytes += len(data)
            self._file.write(data)
            if len(self._rows) >= _COMPACT:
                self._compact()

    def write_table(self, parts: Iterable[memoryview | bytes], table: pa.Table) -> None:
        """Append samples laid out in `parts`, whose rows in `table` have the offsets of this shard.

        Use `write` or this for all samples of a shard.
        """
        with writing(self._out):
            self._begin()
            for part in parts:
                self._file.write(part)
                self.bytes += len(part)
        self._tables.append(table)
        self.samples += len(table)

    def _begin(self) -> None:
        if not self.bytes:
            self._file.open(self._work / f"{self._name}.tar")

    def finish(self, commit: Callable[[Shard], None]) -> None:
        """Close the shard that is being written; `commit` is called once it is in place."""
        with writing(self._out):
            self._compact()
            self._file.write(END)
            self._file.finish()
            self._finisher.check()
            made = self._name, self._tables, self.bytes + len(END), commit
            self._thread.submit(self._finisher.submit, self._put_in_place, *made)
        self._number += 1
        self._tables = []
        self.samples = self.bytes = 0

    def drain(self) -> None:
        """Wait until all finished shards are in place."""
        with writing(self._out):
            self._thread.drain()
            self._finisher.drain()

    def close(self) -> None:
        """End the threads; an unfinished shard stays as it is."""
        self._thread.close()
        self._finisher.close()
        self._file.abandon()

    def _compact(self) -> None:
        if len(self._rows):
            self._tables.append(to_table(self._rows))
            self._rows = Rows()

    def _put_in_place(
        self, name: str, tables: list[pa.Table], size: int, commit: Callable[[Shard], None]
    ) -> None:
        # One chunk a column: where the tables were parted must not show in the file.
        table = pa.concat_tables(tables).combine_chunks()
        shard = indexed_shard(self._work / f"{name}.parquet", table, f"{name}.tar", size)
        for file in (shard.name, shard.index):
            (self._work / file).replace(self._out / file)
        fsync_folder(self._out)
        commit(shard)

    @property
    def _name(self) -> str:
        return f"shard-{self._number:06d}"


def indexed_shard(path: Path, table: pa.Table, name: str, size: int) -> Shard:
    """Write the index of a shard, whose `size` bytes are in the file `name`; return its entry."""
    return Shard(
        name=name,
        index=path.name,
        samples=len(table),
        images=pc.sum(table["images"]).as_py() or 0,
        bytes=size,
        index_sha256=write_index(path, table),
    )


class WrittenShard(NamedTuple):
    """Shard in the folder of an attempt."""

    shard: Shard
    folder: Path
    node: str = ""  # of a cluster, that wrote it; "" on this machine


def attempt_shard(
    work: Path, number: int, fill: Callable[[ShardWriter], None], node: str = ""
) -> WrittenShard:
    """Write a shard that `fill` makes into a new folder in `work`.

    So one that comes late, or was given up, never touches a finished shard.
    """
    folder = work / f"{_ATTEMPT}{uuid4().hex}"
    with writing(folder):
        folder.mkdir()
    writer = ShardWriter(folder, folder, number)
    shards: list[Shard] = []
    try:
        fill(writer)
        writer.finish(shards.append)
        writer.drain()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        writer.close()
    return WrittenShard(shards[0], folder, node)


def place_attempt(written: WrittenShard, out: Path) -> None:
    """Move a shard from the folder of its attempt into `out`."""
    shard, folder, node = written
    if node and not folder.exists():
        raise PackError(
            f"{out}: the node {node} wrote {shard.name} there, and it is not seen here; give a "
            "folder that all nodes share, or a URL"
        )
    with writing(out):
        for name in (shard.name, shard.index):
            (folder / name).replace(out / name)
        fsync_folder(out)
        folder.rmdir()


def remove_attempts(work: Path) -> None:
    """Remove the shards that an earlier run was writing."""
    for left in work.glob(f"{_ATTEMPT}*"):
        shutil.rmtree(left, ignore_errors=True)
