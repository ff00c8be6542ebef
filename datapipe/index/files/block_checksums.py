"""Checksums of files by blocks, and arrays that are compared with them before they are used.

Files of up to 256 MB together are compared when they are opened. Of larger ones, and of many
datasets that share this limit, each block is compared when it is first read, so that opening a
billion samples reads no column.
"""

from __future__ import annotations

import functools
import io
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from datapipe.array_types import Int64, UInt32
from datapipe.errors import IndexMismatch
from datapipe.index.files.crc32 import crc32, prefix_sums
from datapipe.index.files.npy import HEADER, NpyFile, map_npy
from datapipe.index.files.random_read import read_at

SUMS = "checksums.npy"
"""File of a folder's checksums: uint32, one for each block, file after file."""

BLOCK = 1 << 13
"""Bytes of a block. Larger blocks slow reads at random down, smaller ones need more checksums."""

_LARGE = 256 << 20  # bytes of a column up to which it may stay in memory whole
MOST_COMPARED = 256 << 20  # bytes of a folder's files, up to which all are compared when opened
_WHOLE_TOGETHER = 4 << 30  # bytes of all datasets of a mixture, likewise: a second or two
_AT_ONCE = 128  # blocks that are read together: more of them would leave the processor's cache

_datasets: ContextVar[int] = ContextVar("datasets", default=1)

Kind = str | tuple[str, tuple[int, ...]]
"""The dtype of a file's values in NumPy's notation, or with the shape of a row: `("<f8", (4,))`."""


def write_sums(folder: Path, names: Iterable[str]) -> int:
    """Write the checksums of some files of a folder into it, and return the checksum of these."""
    with closing(NpyFile(folder / SUMS, "<u4")) as file:
        for name in names:
            for sums in sums_of(folder / name):
                file.append(sums)
    return crc32(map_npy(folder / SUMS, "<u4").data)


@contextmanager
def as_one_of(datasets: int) -> Iterator[None]:
    """Open files as those of one of several datasets, which share the limits of one."""
    token = _datasets.set(datasets)
    try:
        yield
    finally:
        _datasets.reset(token)


def checked_files(
    folder: Path, dtypes: Mapping[str, Kind], sums: int, *, remedy: str
) -> dict[str, Any]:
    """Return the values of the `.npy` files of a folder, compared before they are used.

    `dtypes` are in the order of the checksums, and `sums` is what `write_sums` returned. The values
    of large files are `CheckedColumn`s. `remedy` says what a person can do about damage. Raises
    `IndexMismatch` if a file is missing, or is not the one that was written.
    """
    paths = {name: os.path.join(folder, name) for name in dtypes}
    try:
        sizes = {name: os.stat(path).st_size for name, path in paths.items()}
        whole: UInt32 = map_npy(folder / SUMS, "<u4")
    except OSError as error:
        raise IndexMismatch(f"{folder}: {error}; {remedy}") from error
    except ValueError as error:
        raise damaged(folder / SUMS, remedy) from error
    counts = [-(-size // BLOCK) for size in sizes.values()]
    # Read and not mapped: 77 MB of a billion samples would count as this process's memory.
    read = prefix_sums(folder / SUMS, [whole.nbytes], start=HEADER)
    if read != [sums] or len(whole) != sum(counts):
        raise damaged(folder / SUMS, remedy)
    sums_of_files = dict(zip(dtypes, np.split(whole, np.cumsum(counts)[:-1]), strict=True))
    if sum(sizes.values()) > min(MOST_COMPARED, _WHOLE_TOGETHER // _datasets.get()):
        return {
            name: CheckedColumn(paths[name], kind, sizes[name], sums_of_files[name], remedy)
            for name, kind in dtypes.items()
        }
    for name, path in paths.items():
        at = 0
        for found in sums_of(path):
            wrong = np.flatnonzero(found != sums_of_files[name][at : at + len(found)])
            if len(wrong):
                raise damaged(path, remedy, at + int(wrong[0]))
            at += len(found)
    return {name: _map(Path(paths[name]), kind, remedy) for name, kind in dtypes.items()}


class CheckedColumn:
    """Array in a file, mapped when needed; each block is compared when it is first read.

    Indexing it returns plain arrays. `np.asarray` and methods such as `sum` compare all blocks. If
    `by_position`, values at random are better read from the file than mapped.
    """

    def __init__(self, path: str, kind: Kind, size: int, sums: UInt32, remedy: str) -> None:
        self._path, self._kind, self._sums, self._remedy = path, kind, sums, remedy
        dtype, row = (kind, ()) if isinstance(kind, str) else kind
        self.dtype = np.dtype(dtype)
        self._item = self.dtype.itemsize * math.prod(row)
        self.shape = (max(0, size - HEADER) // self._item, *row)
        self._size = size
        self.compared = np.zeros(len(sums), bool)
        self.by_position = not row and size > _LARGE // _datasets.get()

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process maps the file itself, and compares what it touches.
        args = self._path, self._kind, self._size, self._sums, self._remedy
        return CheckedColumn, args, {"by_position": self.by_position}

    @functools.cached_property
    def values(self) -> npt.NDArray[Any]:
        return _map(Path(self._path), self._kind, self._remedy)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        self.compare(index)
        return self.values[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        self.compare(slice(None))
        return self.values if dtype is None else self.values.astype(dtype)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the array; all but those of its size compare it first."""
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self.values, name)
        if name not in ("size", "nbytes", "itemsize", "ndim"):
            self.compare(slice(None))
        return value

    def compare(self, index: Any, width: int = 1) -> None:
        """Compare the blocks of some values; IndexMismatch if one is not what was written.

        `index` is an integer, a slice, a mask or an array of integers, or a tuple with one of these
        first. `width` values are compared from each of the integers on.
        """
        if isinstance(index, tuple):  # further axes are inside of a row
            index = index[0]
        item = self._item
        blocks: Any
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step < 0:
                start, stop = stop + 1, start + 1
            if stop <= start:
                return
            first, last = (HEADER + start * item) // BLOCK, (HEADER + stop * item - 1) // BLOCK
            if self.compared[first] and (first == last or self.compared[first : last + 1].all()):
                return
            blocks = np.arange(first, last + 1)
        else:
            numbers = np.asarray(index)
            if numbers.dtype == bool:
                numbers = np.flatnonzero(numbers)
            # Out of range is an error of the indexing that follows.
            numbers = numbers.astype(np.int64).ravel() % max(len(self), 1)
            blocks = (numbers * item + HEADER) // BLOCK
            if width > 1:  # a single value is in one block: its size divides the header's
                ends = ((numbers + width) * item + HEADER - 1) // BLOCK
                blocks = np.concatenate((blocks, np.minimum(ends, len(self.compared) - 1)))
            if self.compared[blocks].all():
                return
        wanted = np.unique(blocks[~self.compared[blocks]])
        for _ in self._read_blocks(np.split(wanted, range(_AT_ONCE, len(wanted), _AT_ONCE))):
            pass

    def read(self, numbers: Int64, width: int = 1) -> npt.NDArray[Any]:
        """Return `width` values from each number on, compared: [n, width]."""
        if not self.by_position:
            self.compare(numbers, width)
            values: npt.NDArray[Any] = self.values[numbers[:, None] + np.arange(width)]
            return values
        found = np.empty((len(numbers), width), self.dtype)
        # Neighbours share blocks, and a disk likes an order.
        order = np.argsort(numbers, kind="stable")
        begins = numbers[order] * self._item + HEADER
        # Values in two blocks are whole too: the second follows the first.
        blocks = np.stack((begins, begins + width * self._item - 1)) // BLOCK
        if blocks.size and (blocks[0, 0] < 0 or blocks[1, -1] >= len(self.compared)):
            raise IndexError(f"{numbers.min()} or {numbers.max()} is not below {len(self)}")
        merged = np.sort(blocks, axis=None, kind="stable")  # two ascending runs, in linear time
        wanted = merged[np.flatnonzero(np.diff(merged, prepend=-1))]
        first, last = np.searchsorted(wanted, blocks)
        cuts = [0]
        while cuts[-1] < len(order):
            cuts.append(int(np.searchsorted(last, first[cuts[-1]] + _AT_ONCE)))
        spans = list(itertools.pairwise(cuts))
        reads = self._read_blocks([wanted[first[a] : last[b - 1] + 1] for a, b in spans])
        for (a, b), read in zip(spans, reads, strict=True):
            values = np.frombuffer(read, self.dtype)
            starts = ((first[a:b] - first[a]) * BLOCK + begins[a:b] % BLOCK) // self._item
            found[order[a:b]] = values[starts[:, None] + np.arange(width)]
        return found

    def _read_blocks(self, groups: Sequence[Int64]) -> Iterator[memoryview]:
        """Yield the compared bytes of each group of blocks, until the next; `read_at` knows all."""
        offsets = np.concatenate([*groups, np.empty(0, np.int64)]) * BLOCK
        reads = read_at(self._path, offsets.tolist(), BLOCK)
        # One buffer for all: memory that is freed and asked for again costs a fault a page.
        buffer = memoryview(bytearray(BLOCK * max(map(len, groups), default=0)))
        for wanted in groups:
            sums = []
            for number, data in enumerate(itertools.islice(reads, len(wanted))):
                sums.append(crc32(data))
                buffer[number * BLOCK : number * BLOCK + len(data)] = data
            wrong = wanted[np.array(sums, np.uint32) != self._sums[wanted]]
            if len(wrong):
                raise damaged(self._path, self._remedy, int(wrong[0]))
            self.compared[wanted] = True
            yield buffer[: len(wanted) * BLOCK]


def _map(path: Path, kind: Kind, remedy: str) -> npt.NDArray[Any]:
    dtype, row = (kind, ()) if isinstance(kind, str) else kind
    try:
        values: npt.NDArray[Any] = map_npy(path, dtype, row)
    except (OSError, ValueError) as error:
        raise damaged(path, remedy) from error
    return values


def damaged(path: str | os.PathLike[str], remedy: str, block: int | None = None) -> IndexMismatch:
    """Return the error for a file that is not what was written."""
    where = "" if block is None else f" between bytes {block * BLOCK:,} and {(block + 1) * BLOCK:,}"
    return IndexMismatch(f"{path} is damaged{where}: it is not what was written; {remedy}")


def sums_of(path: str | os.PathLike[str]) -> Iterator[UInt32]:
    """Yield the checksums of a file's blocks, many at a time."""
    with io.FileIO(path) as file:
        # One buffer for all: memory that is freed and asked for again costs a fault a page.
        size = min(os.fstat(file.fileno()).st_size, _AT_ONCE * BLOCK)
        buffer = memoryview(bytearray(size))
        while size := file.readinto(buffer):
            data = buffer[:size]
            found = [crc32(data[start : start + BLOCK]) for start in range(0, size, BLOCK)]
            yield np.array(found, np.uint32)
