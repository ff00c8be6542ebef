"""Packing on a Ray cluster: tasks prepare parts, and others write shards of them.

The driver sees outcomes and sizes, cuts shards in the order of the inputs, and tells a task which
stretches of which parts are a shard. The task writes it under a name of its own in `OUT/.pack`, in
a folder that all nodes share or at a URL. The driver moves it into place, so a task that was given
up never touches a finished shard.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from datapipe.errors import PackError, WorkerError
from datapipe.index.manifest import UNFINISHED, replace_file
from datapipe.index.rows import Rows
from datapipe.pack.input.raw_sample import InputCount
from datapipe.pack.journal import Checkpoint, Journal
from datapipe.pack.workers.prepare import PrepareOptions
from datapipe.pack.workers.ray_workers import RayWorkers, StoredData
from datapipe.pack.writers import shards
from datapipe.progress import readable_size
from datapipe.remote.upload import RemoteTarget
from datapipe.workers.ray_cluster import RayCluster, node_name

PATIENCE = 10.0
"""Seconds that a writing task waits for one part before it gives its CPU back.

A task that waits in `ray.get` for a part keeps its CPU (Ray 2.60). If a lost node had the part,
the task that makes it again may never get one.
"""

_MEMORY = 256 << 20  # bytes that a writing task asks for
_BATCH = 4  # parts that a writing task gets at once, while Ray fetches as many for it
_STORE_SHARE = 0.5  # of the object stores, that shards may fill which wait to be written


class Piece(NamedTuple):
    """Stretch of a part that belongs to a shard."""

    data: StoredData
    # `start`, `stop`: rows of the part; `origin`: where its offsets are counted from, in the part
    start: int
    stop: int
    origin: int


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

    def sink(self, journal: Journal) -> RaySink:
        self._sink = RaySink(self.cluster, journal)
        return self._sink

    def note(self) -> str:
        held = f", {readable_size(self._sink.held)} in the object store" if self._sink else ""
        nodes = self.cluster.resources.nodes
        return f"{nodes:,} node{'s' * (nodes != 1)}{held}"

    def close(self) -> None:
        if "cluster" in vars(self):
            self.cluster.close()


class RaySink:
    """Sink that has each shard written by a task, and puts shards in place in their order."""

    def __init__(self, cluster: RayCluster, journal: Journal) -> None:
        self.samples = self.bytes = 0
        self._cluster = cluster
        self._work = journal.work.absolute()
        self._number = journal.number
        self._journal = journal
        self._target = journal.target
        self._pieces: list[Piece] = []
        self._pending: deque[_Pending] = deque()  # shards that are being written, in order
        shards.remove_attempts(self._work)

    @property
    def held(self) -> int:
        """Bytes in the object store that are or will be written."""
        return self.bytes + sum(shard.bytes for shard in self._pending)

    def write(self, data: StoredData, rows: Rows, start: int, stop: int, origin: int) -> None:
        self._pieces.append(Piece(data, start, stop, origin))
        self.samples += stop - start
        self.bytes += len(data)
        while self._pending and self._cluster.ready([self._pending[0].written], 0):
            self._place()

    def cut(self, count: InputCount) -> None:
        checkpoint = self._journal.checkpoint(count)
        cluster = self._cluster
        room = _STORE_SHARE * cluster.resources.memory
        while self._pending and (len(self._pending) > cluster.resources.nodes or self.held > room):
            self._place()
        written = self._begin(self._number, self._pieces, PATIENCE)
        # The pieces stay, so that Ray can make again what a lost node had.
        self._pending.append(_Pending(written, checkpoint, self.bytes, self._number, self._pieces))
        self._number += 1
        self._pieces = []
        self.samples = self.bytes = 0

    def drain(self) -> None:
        while self._pending:
            self._place()

    def close(self) -> None:
        """Forget what is being written; nothing puts it in place."""
        self._pending.clear()

    def _begin(self, number: int, pieces: list[Piece], patience: float | None) -> Any:
        """Begin to write a shard; a task that waits as long as it takes has no CPU to keep."""
        return self._cluster.submit(
            write_shard,
            *(self._target or self._work, number, pieces, patience),
            memory=_MEMORY,
            scheduling_strategy="SPREAD",
            **({"num_cpus": 0} if patience is None else {}),
        )

    def _place(self) -> None:
        """Wait for the first shard that is being written, and put it in place."""
        pending = self._pending[0]
        out = self._target or self._journal.out
        try:
            result = self._cluster.result(pending.written)
            if result is None:
                result = self._cluster.result(self._begin(pending.number, pending.pieces, None))
        except WorkerError as error:
            raise PackError(
                f"{out}: a shard could not be written: {error}; run the same command again, "
                "finished shards are kept"
            ) from error
        written: shards.WrittenShard
        written, table = result
        del self._pending[0]
        if self._target is None:
            shards.place_attempt(written, self._journal.out)
        else:
            name = f"{UNFINISHED}/{written.folder.name}.tar"
            self._target.begin_task(self._target.move(name, written.shard.name)).result()
            with shards.writing(self._journal.out):
                replace_file(self._journal.out / written.shard.index, table)
        self._journal.commit(written.shard, pending.checkpoint)


class _Pending(NamedTuple):
    written: Any  # reference to what `write_shard` returns
    checkpoint: Checkpoint
    bytes: int
    number: int
    pieces: list[Piece]


def write_shard(
    target: Path | RemoteTarget, number: int, pieces: Sequence[Piece], patience: float | None
) -> tuple[shards.WrittenShard, bytes] | None:
    """Write a shard of stretches of parts, below the working folder or at a URL. A task.

    Of a shard at a URL, the driver needs the bytes of the index too. None if a part did not come
    within `patience` seconds.
    """
    from ray.exceptions import GetTimeoutError

    fill = partial(_fill, pieces, patience)
    try:
        if isinstance(target, Path):
            return shards.attempt_shard(target, number, fill, node_name()), b""
        with tempfile.TemporaryDirectory(prefix="datapipe-") as name:
            written = shards.attempt_shard(Path(name), number, fill, node_name())
            shard, folder, _ = written
            put = target.put(folder / shard.name, f"{UNFINISHED}/{folder.name}.tar")
            target.begin_task(put).result()
            return written, (folder / shard.index).read_bytes()
    except GetTimeoutError:
        return None


def _fill(pieces: Sequence[Piece], patience: float | None, writer: shards.ShardWriter) -> None:
    import ray

    batches = [pieces[first : first + _BATCH] for first in range(0, len(pieces), _BATCH)]
    for batch, coming in zip_longest(batches, batches[1:], fillvalue=()):
        if coming:
            ray.wait([*{piece.data.reference for piece in coming}], timeout=0)
        references = [piece.data.reference for piece in batch]
        parts = ray.get(references, timeout=patience and patience * len(batch))
        for (data, start, stop, origin), (content, rows) in zip(batch, parts, strict=True):
            view = memoryview(content)
            if len(view) != data.size:
                raise PackError(
                    f"raw data was changed while it was packed: a part had {data.size:,} bytes, "
                    f"and when it was made again {len(view):,}; run the same command again"
                )
            writer.write(view[data.start : data.stop], rows, start, stop, origin)
