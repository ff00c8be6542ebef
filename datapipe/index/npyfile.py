"""One-dimensional `.npy` files of a length that is not known before they are written.

Source: NumPy enhancement proposal 1, "A simple file format for NumPy arrays".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


class NpyFile:
    """A `.npy` file that grows; its length is filled in when it is closed."""

    _HEADER = 128

    def __init__(self, path: Path, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._length = 0
        self._file = path.open("wb")
        self._file.write(self._header())

    def append(self, values: npt.NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self._length += len(values)

    def close(self) -> None:
        self._file.seek(0)
        self._file.write(self._header())
        self._file.close()

    def _header(self) -> bytes:
        # Version 1.0 of numpy's format, padded to a fixed size so that it can be rewritten.
        kind, length = self._dtype.str, self._length
        text = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': ({length},), }}"
        magic = b"\x93NUMPY\x01\x00"
        body = text.encode().ljust(self._HEADER - len(magic) - 3) + b"\n"
        return magic + len(body).to_bytes(2, "little") + body
