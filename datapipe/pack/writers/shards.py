"""Writes tar shards and their indexes, cut at a size, each appearing whole by rename."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from datapipe.errors import PackError
from datapipe.index.manifest import Shard, fsync_folder
from datapipe.index.rows import Row, write_index
from datapipe.pack.prepare import Prepared
from datapipe.pack.ustar import END

_IOV_MAX = 1024  # parts that one writev takes
_TOGETHER = 192  # parts that wait for each other: some 32 samples, few enough to be small


@dataclass(frozen=True, slots=True)
class ShardSize:
    """Where a shard ends: at so many samples, or before so many bytes are exceeded."""

    samples: int | None = None
    bytes: int | None = None

    def is_full(self, samples: int, size: int, next_size: int) -> bool:
        """Whether a sample of `next_size` bytes belongs into the next shard."""
        if samples == 0:
            return False
        if self.samples is not None:
            return samples >= self.samples
        assert self.bytes is not None
        return size + next_size + len(END) > self.bytes


class ShardWriter:
    """Writes prepared samples in the order given.

    A shard is written under a temporary name in `work` and renamed into `out` once it and its index
    are on disk.
    """

    def __init__(self, out: Path, work: Path, limit: ShardSize, first: int = 0) -> None:
        self._out = out
        self._work = work
        self._limit = limit
        self._number = first
        self._descriptor: int | None = None
        self._position = 0
        self._rows: list[Row] = []
        self._starts: list[int] = []  # of each row in the shard, bytes
        self._parts: list[bytes] = []  # not written yet

    def write(self, sample: Prepared) -> Shard | None:
        """Append a sample; returns the shard that this one closed, if any."""
        closed = None
        if self._limit.is_full(len(self._rows), self._position, sample.bytes):
            closed = self.finish()
        if self._descriptor is None:
            with self._writing():
                self._descriptor = os.open(
                    self._temporary("tar"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644
                )
            self._position = 0
        self._rows.append(sample.row)
        self._starts.append(self._position)
        self._position += sample.bytes
        self._parts += sample.parts
        if len(self._parts) >= _TOGETHER:
            self._flush()
        return closed

    def finish(self) -> Shard | None:
        """Close the shard that is being written and put it in place; None if there is none."""
        if self._descriptor is None:
            return None
        name = f"shard-{self._number:06d}"
        self._parts.append(END)
        self._position += len(END)
        self._flush()
        with self._writing():
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
            digest = write_index(self._temporary("parquet"), self._rows, self._starts)
            for ending in ("tar", "parquet"):
                self._temporary(ending).replace(self._out / f"{name}.{ending}")
            fsync_folder(self._out)
        shard = Shard(
            name=f"{name}.tar",
            index=f"{name}.parquet",
            samples=len(self._rows),
            images=sum(len(row.images) for row in self._rows),
            bytes=self._position,
            index_sha256=digest,
        )
        self._number += 1
        self._rows, self._starts = [], []
        return shard

    def abandon(self) -> None:
        """Close the unfinished shard without putting it in place."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _temporary(self, ending: str) -> Path:
        return self._work / f"shard.{ending}"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PackError(
                f"{self._out}: writing failed: {error.strerror or error}; make room or mend the "
                "disk and run the same command again, finished shards are kept"
            ) from error

    def _flush(self) -> None:
        assert self._descriptor is not None
        for start in range(0, len(self._parts), _IOV_MAX):
            group = self._parts[start : start + _IOV_MAX]
            with self._writing():
                done = os.writev(self._descriptor, group)
                if done < sum(map(len, group)):  # a signal, or more than 2 GiB at once
                    _write_all(self._descriptor, b"".join(group)[done:])
        self._parts = []


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
