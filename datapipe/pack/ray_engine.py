"""Packing on a Ray cluster: tasks prepare parts, and others write shards of them.

The driver sees outcomes and sizes, cuts shards in the order of the inputs, and tells a task which
stretches of which parts are a shard. The task writes it into a folder of its own below `OUT/.pack`.
The driver moves it into place, so a task that was given up never touches a finished shard.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from datapipe.errors import PackError, WorkerError
from datapipe.index.manifest import Shard, fsync_folder
from datapipe.index.rows import Rows
from datapipe.pack.input.raw_sample import InputCount, Reject
from datapipe.pack.journal import Checkpoint, Journal
from datapipe.pack.workers.prepare import PrepareOptions
from datapipe.pack.workers.ray_workers import RayWorkers, StoredData
from datapipe.pack.writers.shards import ShardWriter, writing
from datapipe.progress import readable_size
from datapipe.workers.ray_cluster import RayCluster, node_name

_ATTEMPT = "attempt-"
_MEMORY = 256 << 20  # bytes that a writing task asks for
_AHEAD = 8  # parts that are fetched before a writing task needs them
_STORE_SHARE = 0.5  # of the object stores, that shards may fill which wait to be written


class Piece(NamedTuple):
    """Stretch of a part that belongs to a shard."""

    data: StoredData
    # `start`, `stop`: rows of the part; `origin`: where its offsets are counted from, in the part
    start: int
    stop: int
    origin: int


class WrittenShard(NamedTuple):
    """Shard in the folder of an attempt."""

    shard: Shard
    folder: Path
    node: str


class RayEngine:
    """Tasks of a Ray cluster. It is connected to when workers are asked for."""

    def __init__(
        self, address: str | None, cpus: int | None, runtime_env: Mapping[str, Any] | None
    ) -> None:
        self._options = address, cpus, runtime_env
        self._workers: RayWorkers | None = None
        self._sink: RaySink | None = None

    @cached_property
    def cluster(self) -> RayCluster:
        try:
            return RayCluster(*self._options)
        except WorkerError as error:
            raise PackError(str(error)) from error

    @property
    def lost(self) -> int:
        return self._workers.lost if self._workers else 0

    def workers(self, options: PrepareOptions, *, few: bool) -> RayWorkers:
        self._workers = RayWorkers(options, self.cluster)
        return self._workers

    def sink(
        self, work: Path, first: int, journal: Journal, placed: Callable[[Shard], None]
    ) -> RaySink:
        self._sink = RaySink(self.cluster, work, first, journal, placed)
        return self._sink

    def note(self) -> str:
        held = f", {readable_size(self._sink.held)} in the object store" if self._sink else ""
        return f"{self.cluster.nodes} nodes{held}"

    def close(self) -> None:
        if "cluster" in vars(self):
            self.cluster.close()


class RaySink:
    """Sink that has each shard written by a task, and puts shards in place in their order."""

    def __init__(
        self,
        cluster: RayCluster,
        work: Path,
        first: int,
        journal: Journal,
        placed: Callable[[Shard], None],
    ) -> None:
        self.samples = self.bytes = 0
        self._cluster = cluster
        self._work = work.absolute()
        self._number = first
        self._journal = journal
        self._placed = placed
        self._pieces: list[Piece] = []
        self._pending: deque[_Pending] = deque()  # shards that are being written, in order
        for left in self._work.glob(f"{_ATTEMPT}*"):  # by an earlier run
            shutil.rmtree(left, ignore_errors=True)

    @property
    def held(self) -> int:
        """Bytes in the object store that are or will be written."""
        return self.bytes + sum(shard.bytes for shard in self._pending)

    def write(self, data: StoredData, rows: Rows, start: int, stop: int, origin: int) -> None:
        """Add samples to the shard."""
        self._pieces.append(Piece(data, start, stop, origin))
        self.samples += stop - start
        self.bytes += len(data)
        while self._pending and self._cluster.ready([self._pending[0].written], 0):
            self._place()

    def cut(self, count: InputCount, saved_bytes: int) -> None:
        """Begin to write the shard."""
        with writing(self._journal.out):
            checkpoint = self._journal.checkpoint(count, saved_bytes)
        room = _STORE_SHARE * self._cluster.memory
        while self._pending and (len(self._pending) > self._cluster.nodes or self.held > room):
            self._place()
        written = self._cluster.submit(
            write_shard,
            *(self._work, self._number, self._pieces),
            num_cpus=0,
            memory=_MEMORY,
            scheduling_strategy="SPREAD",
        )
        # The pieces stay, so that Ray can make again what a lost node had.
        self._pending.append(_Pending(written, checkpoint, self.bytes, self._pieces))
        self._number += 1
        self._pieces = []
        self.samples = self.bytes = 0

    def reject(self, reject: Reject) -> None:
        with writing(self._journal.out):
            self._journal.reject(reject)

    def drain(self) -> None:
        """Wait until all finished shards are in place."""
        while self._pending:
            self._place()

    def close(self) -> None:
        """Cancel what is being written."""
        self._cluster.cancel([shard.written for shard in self._pending])
        self._pending.clear()

    def _place(self) -> None:
        """Wait for the first shard that is being written, and put it in place."""
        pending = self._pending[0]
        out = self._journal.out
        try:
            shard, folder, node = self._cluster.result(pending.written)
        except WorkerError as error:
            raise PackError(
                f"{out}: a shard could not be written: {error}; run the same command again, "
                "finished shards are kept"
            ) from error
        del self._pending[0]
        if not folder.exists():
            raise PackError(
                f"{out}: the node {node} wrote {shard.name} there, and it is not seen here; give a "
                "folder that all nodes share, or a URL"
            )
        with writing(out):
            for name in (shard.name, shard.index):
                (folder / name).replace(out / name)
            fsync_folder(out)
            folder.rmdir()
            self._journal.commit(shard, pending.checkpoint)
        self._placed(shard)


class _Pending(NamedTuple):
    written: Any  # reference to a `WrittenShard`
    checkpoint: Checkpoint
    bytes: int
    pieces: list[Piece]


def write_shard(work: Path, number: int, pieces: Sequence[Piece]) -> WrittenShard:
    """Write a shard of stretches of parts into a new folder. A task."""
    import ray

    folder = work / f"{_ATTEMPT}{uuid4().hex}"
    with writing(work.parent):
        folder.mkdir()
    writer = ShardWriter(folder, folder, number)
    shards: list[Shard] = []
    try:
        for place, (data, start, stop, origin) in enumerate(pieces):
            coming = [piece.data.reference for piece in pieces[place + 1 : place + 1 + _AHEAD]]
            if coming:
                ray.wait(list(dict.fromkeys(coming)), timeout=0)
            content, rows = ray.get(data.reference)
            view = memoryview(content)
            if len(view) != data.size:
                raise PackError(
                    f"{work.parent}: raw data was changed while it was packed: a part had "
                    f"{data.size:,} bytes, and when it was made again {len(view):,}; run the same "
                    "command again"
                )
            writer.write(view[data.start : data.stop], rows, start, stop, origin)
        writer.finish(shards.append)
        writer.drain()
    except BaseException:
        writer.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    writer.close()
    return WrittenShard(shards[0], folder, node_name())
