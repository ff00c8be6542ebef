"""Compiled gathering of many images from one stretch of memory, past the processor's caches.

Values are those of `normalize_kernel`, to the bit. What is changed on the way is worked out a few
lines at a time, where it stays in the nearest cache, and goes out from there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from datapipe.decode.stream_kernel import compiled, finish, stream

UInt8 = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_CHUNK = 4096  # values that are worked out at a time
_PLACES = "int64[::1], int64[::1], boolean[::1], int64, int64"


@compiled(f"void(uint8[::1], uint8[::1], {_PLACES})")
def gather_uint8(
    source: UInt8,
    target: UInt8,
    starts: Int64,
    rows: Int64,
    mirrored: Bools,
    length: int,
    width: int,
) -> None:
    """Copy images of `length` values, each at its start, to rows of the target."""
    begin, out = source.ctypes.data, target.ctypes.data
    lines = max(_CHUNK // width, 1)
    chunk = np.empty(lines * width, np.uint8)
    for image in range(len(starts)):
        to = out + rows[image] * length
        if not mirrored[image]:
            stream(to, begin + starts[image], length)
            continue
        for at in range(0, length, lines * width):
            size = min(lines * width, length - at)
            values = source[starts[image] + at : starts[image] + at + size]
            for line in range(0, size, width):
                for x in range(width):
                    chunk[line + x] = values[line + width - 1 - x]
            stream(to + at, chunk.ctypes.data, size)
    finish()


@compiled(f"void(uint8[::1], float32[::1], float32[::1], float32[::1], {_PLACES})")
def gather_float32(
    source: UInt8,
    scale: Float32,
    shift: Float32,
    target: Float32,
    starts: Int64,
    rows: Int64,
    mirrored: Bools,
    length: int,
    width: int,
) -> None:
    """As `gather_uint8`, normalised: of three planes of red, green and blue."""
    out = target.ctypes.data
    plane = length // 3
    lines = max(_CHUNK // width, 1)
    chunk = np.empty(lines * width, np.float32)
    for image in range(len(starts)):
        for c in range(3):
            s, t = scale[c], shift[c]
            first = starts[image] + c * plane
            to = out + 4 * (rows[image] * length + c * plane)
            for at in range(0, plane, lines * width):
                size = min(lines * width, plane - at)
                values = source[first + at : first + at + size]
                if mirrored[image]:
                    for line in range(0, size, width):
                        for x in range(width):
                            chunk[line + x] = np.float32(values[line + width - 1 - x]) * s + t
                else:
                    for x in range(size):
                        chunk[x] = np.float32(values[x]) * s + t
                stream(to + 4 * at, chunk.ctypes.data, 4 * size)
    finish()
