"""`.npy` files of a length that is not known before they are written.

Source: NumPy enhancement proposal 1, "A simple file format for NumPy arrays".
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datapipe.array_types import UInt8
from datapipe.errors import IndexMismatch
from datapipe.index.files.crc32 import crc32

HEADER = 128
"""Bytes before the first value, as NumPy aligns it; enough for any length."""


def header(dtype: str, length: int, row: tuple[int, ...] = ()) -> bytes:
    """Return the header of `length` rows: version 1.0 of the format, padded to `HEADER` bytes."""
    kind = np.dtype(dtype).str
    text = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {(length, *row)!r}, }}"
    magic = b"\x93NUMPY\x01\x00"
    body = text.encode().ljust(HEADER - len(magic) - 3) + b"\n"
    return magic + len(body).to_bytes(2, "little") + body


class NpyFile:
    """A file that grows at its end; its length is filled in when it is closed.

    `dtype` is in NumPy's notation, `row` the shape of an item. `length` items of what the file
    holds are kept, 0 for a new file; `end` is the last of them in a file of offsets, and `crc32`
    their checksum, which is kept up to date unless it is None.
    """

    def __init__(
        self,
        path: Path,
        dtype: str,
        row: tuple[int, ...] = (),
        *,
        length: int = 0,
        end: int = 0,
        crc32: int | None = None,
    ) -> None:
        self._dtype = np.dtype(dtype)
        self._row = row
        self.length = length
        self.crc32 = crc32
        self._end = end
        self._file = path.open("r+b" if length else "wb")
        self._file.write(header(dtype, length, row))
        self._file.seek(HEADER + length * self._dtype.itemsize * math.prod(row))
        self._file.truncate()

    def append(self, values: npt.NDArray[Any]) -> None:
        data = np.ascontiguousarray(values, self._dtype).data
        self._file.write(data)
        if self.crc32 is not None and len(values):
            self.crc32 = crc32(data, self.crc32)
        self.length += len(values)

    def append_ends(self, counts: npt.NDArray[Any]) -> None:
        """Add the ends of further runs of the given lengths to a file of offsets."""
        ends = self._end + np.cumsum(counts, dtype=np.int64)
        self.append(ends)
        self._end = int(ends[-1]) if len(ends) else self._end

    def sync(self) -> None:
        """Make what was added durable."""
        self._file.flush()
        os.fdatasync(self._file.fileno())

    def close(self) -> None:
        """Fill in the length."""
        self._file.seek(0)
        self._file.write(header(self._dtype.str, self.length, self._row))
        self._file.close()


@contextmanager
def npy_files(
    folder: Path, dtypes: Mapping[str, str], offsets: Iterable[str]
) -> Iterator[dict[str, NpyFile]]:
    """Open a new file `NAME.npy` in a folder for each name of `dtypes`; `offsets` begin with 0."""
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(closing(NpyFile(folder / f"{name}.npy", dtype)))
            for name, dtype in dtypes.items()
        }
        for name in offsets:
            files[name].append(np.zeros(1, np.int64))
        yield files


def map_npy(path: Path, dtype: str, row: tuple[int, ...] = ()) -> Any:
    """Map a file that `NpyFile` wrote, as an array that other processes can map again.

    Raises IndexMismatch if it holds something else, and OSError if it cannot be read.
    """
    size = os.stat(path).st_size - HEADER
    length, rest = divmod(size, np.dtype(dtype).itemsize * math.prod(row))
    with path.open("rb") as file:
        if rest or length < 0 or file.read(HEADER) != header(dtype, length, row):
            raise IndexMismatch(
                f"{path} is not the array of {dtype} [n{''.join(f', {n}' for n in row)}] that was "
                "written here; restore it, or convert the shards again into a new folder"
            )
    if not length:
        return np.zeros((0, *row), dtype)
    return map_values(path, dtype, HEADER, (length, *row))


class MappedValues(np.ndarray):
    """Values of a file, with what it takes to map them again."""

    path: str | os.PathLike[str]  # of the file
    start: int  # offset of the first value in it


def map_values(
    path: str | os.PathLike[str], dtype: npt.DTypeLike, start: int, shape: tuple[int, ...]
) -> Any:
    """Map values of a file for reading, from byte `start` on. The file does not stay open.

    The array is a plain one over `MappedValues`: indexing a subclass costs several times more.
    """
    values = MappedValues(shape, np.dtype(dtype), map_file(path), start)
    values.path, values.start = path, start
    return np.asarray(values)


def mapped_from(array: npt.NDArray[Any]) -> tuple[str, int] | None:
    """Return the file that an array is mapped from, and the offset of its first byte.

    Maps that NumPy made for reading count too. None for arrays in memory, and for those with gaps.
    """
    whole: MappedValues | np.memmap[Any, Any] | None = None
    base: Any = array
    while isinstance(base, np.ndarray):
        # A slice of NumPy's map has the offset of the whole map, which is the last base.
        whole = base if isinstance(base, MappedValues | np.memmap) else whole
        base = base.base
    if whole is None or not array.size or not array.flags.c_contiguous:
        return None
    inside = array.ctypes.data - whole.ctypes.data
    if isinstance(whole, MappedValues):
        return os.fspath(whole.path), whole.start + inside
    if not whole.filename or whole.mode != "r":
        return None
    return os.fspath(whole.filename), whole.offset + inside


def map_file(path: str | os.PathLike[str]) -> UInt8:
    """Map a file for reading: uint8 [its bytes]. The file does not stay open.

    Maps of Python and NumPy keep it open, and a mixture of a thousand datasets has some 20,000
    files; those of Arrow do not. Raises OSError if it cannot be read.
    """
    with pa.memory_map(os.fspath(path)) as file:
        return np.frombuffer(file.read_buffer(), np.uint8)
