"""Compiled writing of pixels into a batch, to the bits that `Normalizer` makes with torch.

Importing this module imports numba and takes the kernels from its cache; the first time in an
environment they are compiled, for some seconds. So only `normalize` imports it, in a background
thread, when that pays. A new kernel needs a twin in torch that it agrees with bit for bit.

Targets are uint8, to which pixels are copied, or float32, in which every value is
x * scale + shift, in two roundings, as in torch. Fast-math would make it one, and then the bits of
a batch would depend on when the kernels were loaded.

Source and target are flat, since loops are only vectorised over what is known to be contiguous.
Values are copied in loops, which LLVM vectorises; numba's assignment of a slice takes five times as
long.

`write` and `write_bfloat16` write one image of (height, width, pitch, plane, row). Pixel (y, x) of
the source begins at y * pitch + 3 * x; row y of channel c of the target begins at c * plane + y *
row.

`gather` writes many images at once, of (starts, rows, mirrored, length, width): each of `length`
values from its start in a source to its row of the target. Of several sources, each has the places
from its edge to the next. All are written in one call: between calls a thread waits for the GIL,
for longer than a few images take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numba.typed import List

from datapipe.array_types import Bools, Float32, Int16, Int64, UInt8
from datapipe.compiled import compiled

Target = UInt8 | Float32
Layout = tuple[int, int, int, int, int]
Places = tuple[Int64, Int64, Bools, int, int]

_LAYOUT = types.UniTuple(types.int64, 5)  # type: ignore[no-untyped-call]
_PLACES = types.Tuple(  # type: ignore[no-untyped-call]
    (types.int64[::1], types.int64[::1], types.boolean[::1], types.int64, types.int64)
)
_TARGETS = types.uint8[::1], types.float32[::1]
_BITS, _FLOATS = types.int16[::1], types.float32[::1]
# What is gathered from may be a file that is mapped for reading.
_SOURCE = types.Array(types.uint8, 1, "C", readonly=True)
_SOURCES = types.ListType(_SOURCE)  # type: ignore[no-untyped-call]
_EDGES = types.int64[::1]


def _value(pixel: Any, scale: Any, shift: Any, target: Any) -> Any:
    """Return a pixel as a target holds it."""


@overload(_value)
def _compiled_value(pixel: Any, scale: Any, shift: Any, target: Any) -> Callable[..., Any]:
    def copied(pixel: Any, scale: Any, shift: Any, target: Any) -> Any:
        return pixel

    def normalised(pixel: Any, scale: Any, shift: Any, target: Any) -> Any:
        return np.float32(pixel) * scale + shift

    return copied if target.dtype == types.uint8 else normalised


@compiled([types.void(_SOURCE, to, _FLOATS, _FLOATS, _LAYOUT) for to in _TARGETS])
def write(source: UInt8, target: Target, scale: Float32, shift: Float32, layout: Layout) -> None:
    height, width, pitch, plane, row = layout
    s0, s1, s2 = scale[0], scale[1], scale[2]
    t0, t1, t2 = shift[0], shift[1], shift[2]
    if pitch == 3 * width and row == width:
        height, width = 1, height * width
    for y in range(height):
        pixels = source[y * pitch : y * pitch + 3 * width]
        at = y * row
        red = target[at : at + width]
        green = target[at + plane : at + plane + width]
        blue = target[at + 2 * plane : at + 2 * plane + width]
        for x in range(width):
            red[x] = _value(pixels[3 * x], s0, t0, target)
            green[x] = _value(pixels[3 * x + 1], s1, t1, target)
            blue[x] = _value(pixels[3 * x + 2], s2, t2, target)


@compiled(types.void(_SOURCE, _BITS, _FLOATS, _FLOATS, _LAYOUT))
def write_bfloat16(
    source: UInt8, target: Int16, scale: Float32, shift: Float32, layout: Layout
) -> None:
    """Write bfloat16 as the int16 of the same bits."""
    height, width, pitch, plane, row = layout
    values = np.empty(3 * width, np.float32)
    bits = values.view(np.uint32)
    for y in range(height):
        # A row at a time stays in the cache.
        write(source[y * pitch :], values, scale, shift, (1, width, pitch, width, 0))
        for c in range(3):
            line = target[c * plane + y * row : c * plane + y * row + width]
            part = bits[c * width : (c + 1) * width]
            for x in range(width):
                # The upper half, rounded to nearest, ties to even; no value is infinite or NaN.
                word = part[x]
                line[x] = np.int16((word + np.uint32(0x7FFF) + ((word >> 16) & 1)) >> 16)


@compiled([types.void(_SOURCE, to, _FLOATS, _FLOATS, types.int64, types.int64) for to in _TARGETS])
def write_planes(
    source: UInt8, target: Target, scale: Float32, shift: Float32, count: int, length: int
) -> None:
    """Write `count` planes of `length` values behind each other, of red, green, blue, red, ..."""
    for plane in range(count):
        s, t = scale[plane % 3], shift[plane % 3]
        values = source[plane * length : (plane + 1) * length]
        out = target[plane * length : (plane + 1) * length]
        for x in range(length):
            out[x] = _value(values[x], s, t, target)


@compiled(
    [types.void(_SOURCE, to, _FLOATS, _FLOATS, types.int64, types.boolean) for to in _TARGETS]
)
def write_mirrored(
    source: UInt8, target: Target, scale: Float32, shift: Float32, width: int, interleaved: bool
) -> None:
    """Write an image, interleaved or in planes, with left and right exchanged."""
    plane = len(source) // 3
    step, channel = (3, 1) if interleaved else (1, plane)
    for c in range(3):
        s, t = scale[c], shift[c]
        for line in range(0, plane, width):
            first = c * channel + step * line
            turned = source[first : first + step * width : step][::-1]
            out = target[c * plane + line : c * plane + line + width]
            for x in range(width):
                out[x] = _value(turned[x], s, t, target)


def sources_of(buffers: Sequence[UInt8]) -> Any:
    """Return buffers as `gather` takes them."""
    sources = List.empty_list(_SOURCE, len(buffers))
    for buffer in buffers:
        source = buffer.view()
        source.flags.writeable = False  # items of the list have one type
        sources.append(source)
    return sources


@compiled(
    [types.void(_SOURCES, _EDGES, to, _FLOATS, _FLOATS, _PLACES, types.boolean) for to in _TARGETS]
)
def gather(
    sources: Sequence[UInt8],
    edges: Int64,
    target: Target,
    scale: Float32,
    shift: Float32,
    places: Places,
    interleaved: bool,
) -> None:
    """Write images of planes, or of interleaved red, green and blue, to three planes each."""
    starts, rows, mirrored, length, width = places
    plane = length // 3
    for number in range(len(sources)):
        for image in range(edges[number], edges[number + 1]):
            pixels = sources[number][starts[image] : starts[image] + length]
            out = target[rows[image] * length : (rows[image] + 1) * length]
            if mirrored[image]:
                write_mirrored(pixels, out, scale, shift, width, interleaved)
            elif interleaved:
                write(pixels, out, scale, shift, (1, plane, length, plane, plane))
            else:
                write_planes(pixels, out, scale, shift, 3, plane)
