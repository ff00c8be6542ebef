"""Compiled writing of pixels into a batch, to the bits that `Normalizer` makes with torch.

Importing this module imports numba and takes the kernels from its cache; the first time in an
environment they are compiled, for some seconds. So only `normalize` imports it, when that pays.

Every value is x * scale + shift in float32, in two roundings, as in torch. Fast-math would make it
one, and then the bits of a batch would depend on when the kernels were loaded.

Source and target are flat, since loops are only vectorised over what is known to be contiguous.

`write_*` write one image of (height, width, pitch, plane, row). Pixel (y, x) of the source begins
at y * pitch + 3 * x; row y of channel c of the target begins at c * plane + y * row.

`gather_*` write many images at once, of (starts, rows, mirrored, length, width): each of `length`
values from its start in the source to its row of the target. Values are copied in loops, which LLVM
vectorises; numba's assignment of a slice takes five times as long.

`gather_all_*` do it for several sources, each with the places from its edge to the next, in one
call: between calls a thread waits for the GIL, for longer than a few images take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types
from numba.typed import List

from datapipe.array_types import Bools, Float32, Int16, Int64, UInt8
from datapipe.compiled import compiled

Layout = tuple[int, int, int, int, int]
Places = tuple[Int64, Int64, Bools, int, int]

_LAYOUT = types.UniTuple(types.int64, 5)  # type: ignore[no-untyped-call]
_PLACES = types.Tuple(  # type: ignore[no-untyped-call]
    (types.int64[::1], types.int64[::1], types.boolean[::1], types.int64, types.int64)
)
_BYTES, _BITS, _FLOATS = types.uint8[::1], types.int16[::1], types.float32[::1]
# What is gathered from may be a file that is mapped for reading.
_SOURCE = types.Array(types.uint8, 1, "C", readonly=True)
_SOURCES = types.ListType(_SOURCE)  # type: ignore[no-untyped-call]
_EDGES = types.int64[::1]


@compiled(types.void(_SOURCE, _BYTES, _LAYOUT))
def write_uint8(source: UInt8, target: UInt8, layout: Layout) -> None:
    height, width, pitch, plane, row = layout
    if pitch == 3 * width and row == width:
        height, width = 1, height * width
    for y in range(height):
        pixels = source[y * pitch : y * pitch + 3 * width]
        at = y * row
        red = target[at : at + width]
        green = target[at + plane : at + plane + width]
        blue = target[at + 2 * plane : at + 2 * plane + width]
        for x in range(width):
            red[x] = pixels[3 * x]
            green[x] = pixels[3 * x + 1]
            blue[x] = pixels[3 * x + 2]


@compiled(types.void(_SOURCE, _FLOATS, _FLOATS, _FLOATS, _LAYOUT))
def write_float32(
    source: UInt8, scale: Float32, shift: Float32, target: Float32, layout: Layout
) -> None:
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
            red[x] = np.float32(pixels[3 * x]) * s0 + t0
            green[x] = np.float32(pixels[3 * x + 1]) * s1 + t1
            blue[x] = np.float32(pixels[3 * x + 2]) * s2 + t2


@compiled(types.void(_SOURCE, _FLOATS, _FLOATS, _BITS, _LAYOUT))
def write_bfloat16(
    source: UInt8, scale: Float32, shift: Float32, target: Int16, layout: Layout
) -> None:
    """Write bfloat16 as the int16 of the same bits."""
    height, width, pitch, plane, row = layout
    values = np.empty(3 * width, np.float32)
    bits = values.view(np.uint32)
    for y in range(height):
        # A row at a time stays in the cache.
        write_float32(source[y * pitch :], scale, shift, values, (1, width, pitch, width, 0))
        for c in range(3):
            line = target[c * plane + y * row : c * plane + y * row + width]
            part = bits[c * width : (c + 1) * width]
            for x in range(width):
                # The upper half, rounded to nearest, ties to even; no value is infinite or NaN.
                word = part[x]
                line[x] = np.int16((word + np.uint32(0x7FFF) + ((word >> 16) & 1)) >> 16)


@compiled(types.void(_BYTES, _FLOATS, _FLOATS, _FLOATS, types.int64, types.int64))
def planes_float32(
    source: UInt8, scale: Float32, shift: Float32, target: Float32, count: int, length: int
) -> None:
    """Write `count` planes of `length` values behind each other, of red, green, blue, red, ..."""
    for plane in range(count):
        s, t = scale[plane % 3], shift[plane % 3]
        values = source[plane * length : (plane + 1) * length]
        out = target[plane * length : (plane + 1) * length]
        for x in range(length):
            out[x] = np.float32(values[x]) * s + t


@compiled(types.void(_SOURCE, _BYTES, _PLACES))
def gather_uint8(source: UInt8, target: UInt8, places: Places) -> None:
    """Copy images of three planes."""
    starts, rows, mirrored, length, width = places
    for image in range(len(starts)):
        values = source[starts[image] : starts[image] + length]
        out = target[rows[image] * length : (rows[image] + 1) * length]
        if not mirrored[image]:
            for x in range(length):
                out[x] = values[x]
            continue
        for line in range(0, length, width):
            turned = values[line : line + width][::-1]
            for x in range(width):
                out[line + x] = turned[x]


@compiled(types.void(_SOURCE, _FLOATS, _FLOATS, _FLOATS, _PLACES))
def gather_float32(
    source: UInt8, scale: Float32, shift: Float32, target: Float32, places: Places
) -> None:
    """Normalise images of three planes, of red, green and blue."""
    starts, rows, mirrored, length, width = places
    plane = length // 3
    for image in range(len(starts)):
        for c in range(3):
            s, t, first = scale[c], shift[c], c * plane
            values = source[starts[image] + first : starts[image] + first + plane]
            out = target[rows[image] * length + first : rows[image] * length + first + plane]
            if not mirrored[image]:
                for x in range(plane):
                    out[x] = np.float32(values[x]) * s + t
                continue
            for line in range(0, plane, width):
                turned = values[line : line + width][::-1]
                for x in range(width):
                    out[line + x] = np.float32(turned[x]) * s + t


@compiled(types.void(_SOURCE, _BYTES, _PLACES))
def gather_pixels_uint8(source: UInt8, target: UInt8, places: Places) -> None:
    """Copy images of interleaved red, green and blue to three planes each."""
    starts, rows, mirrored, length, width = places
    plane = length // 3
    for image in range(len(starts)):
        pixels = source[starts[image] : starts[image] + length]
        out = target[rows[image] * length : (rows[image] + 1) * length]
        if not mirrored[image]:
            write_uint8(pixels, out, (1, plane, length, plane, plane))
            continue
        for c in range(3):
            for line in range(0, plane, width):
                turned = pixels[3 * line + c : 3 * (line + width) : 3][::-1]
                for x in range(width):
                    out[c * plane + line + x] = turned[x]


@compiled(types.void(_SOURCE, _FLOATS, _FLOATS, _FLOATS, _PLACES))
def gather_pixels_float32(
    source: UInt8, scale: Float32, shift: Float32, target: Float32, places: Places
) -> None:
    """Normalise images of interleaved red, green and blue to three planes each."""
    starts, rows, mirrored, length, width = places
    plane = length // 3
    for image in range(len(starts)):
        pixels = source[starts[image] : starts[image] + length]
        out = target[rows[image] * length : (rows[image] + 1) * length]
        if not mirrored[image]:
            write_float32(pixels, scale, shift, out, (1, plane, length, plane, plane))
            continue
        for c in range(3):
            s, t = scale[c], shift[c]
            for line in range(0, plane, width):
                turned = pixels[3 * line + c : 3 * (line + width) : 3][::-1]
                for x in range(width):
                    out[c * plane + line + x] = np.float32(turned[x]) * s + t


def sources_of(buffers: Sequence[UInt8]) -> Any:
    """Return buffers as `gather_all_*` take them."""
    sources = List.empty_list(_SOURCE, len(buffers))
    for buffer in buffers:
        source = buffer.view()
        source.flags.writeable = False  # items of the list have one type
        sources.append(source)
    return sources


@compiled(types.void(_SOURCES, _EDGES, _BYTES, _PLACES, types.boolean))
def gather_all_uint8(
    sources: Sequence[UInt8], edges: Int64, target: UInt8, places: Places, interleaved: bool
) -> None:
    starts, rows, mirrored, length, width = places
    for number in range(len(sources)):
        a, b = edges[number], edges[number + 1]
        own = starts[a:b], rows[a:b], mirrored[a:b], length, width
        if interleaved:
            gather_pixels_uint8(sources[number], target, own)
        else:
            gather_uint8(sources[number], target, own)


@compiled(types.void(_SOURCES, _EDGES, _FLOATS, _FLOATS, _FLOATS, _PLACES, types.boolean))
def gather_all_float32(
    sources: Sequence[UInt8],
    edges: Int64,
    scale: Float32,
    shift: Float32,
    target: Float32,
    places: Places,
    interleaved: bool,
) -> None:
    starts, rows, mirrored, length, width = places
    for number in range(len(sources)):
        a, b = edges[number], edges[number + 1]
        own = starts[a:b], rows[a:b], mirrored[a:b], length, width
        if interleaved:
            gather_pixels_float32(sources[number], scale, shift, target, own)
        else:
            gather_float32(sources[number], scale, shift, target, own)
