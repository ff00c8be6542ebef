"""Compiled copies past the processor's caches, and separation of interleaved pixels.

A batch is larger than a core's caches, and is read only once all of it is written. Ordinary stores
would fetch each line of it from memory first, and push everything else out of the caches: after a
copy of five megabytes, Python runs at a third of its speed. Non-temporal stores do neither.

See the Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter on cacheability
control; LLVM leaves the hint out where a processor has no such stores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic as _intrinsic_of_numba

from datapipe.compiled import compiled

LINE = 64
"""Bytes of a cache line, which such stores write as a whole."""

PIXELS = 32
"""Pixels that are separated at once: a 256-bit register of each channel."""

_intrinsic: Callable[..., Any] = _intrinsic_of_numba  # whose types hide that calls differ


@_intrinsic
def _store_line(typing: Any, target: Any, source: Any) -> Any:
    """Copy a line between two addresses; that of the target is a multiple of `LINE`."""

    def build(context: Any, builder: Any, signature: Any, addresses: Any) -> None:
        line = ir.VectorType(ir.IntType(64), LINE // 8)
        start = builder.inttoptr(addresses[1], line.as_pointer())
        _store_past(builder, builder.load(start, align=1), addresses[0])

    return types.void(types.intp, types.intp), build


@_intrinsic
def _store_byte(typing: Any, target: Any, source: Any) -> Any:
    """Copy a byte between two addresses."""

    def build(context: Any, builder: Any, signature: Any, addresses: Any) -> None:
        to, start = (builder.inttoptr(at, ir.IntType(8).as_pointer()) for at in addresses)
        builder.store(builder.load(start), to)

    return types.void(types.intp, types.intp), build


@_intrinsic
def _split_pixels(typing: Any, red: Any, green: Any, blue: Any, source: Any) -> Any:
    """Separate `PIXELS` interleaved pixels, all between addresses.

    One load and three shuffles are instructions that LLVM knows; a loop over every third byte has a
    third of the speed.
    """

    def build(context: Any, builder: Any, signature: Any, addresses: Any) -> None:
        for part, address in zip(_apart(builder, addresses[3], PIXELS), addresses, strict=False):
            builder.store(part, builder.inttoptr(address, part.type.as_pointer()), align=1)

    return types.void(types.intp, types.intp, types.intp, types.intp), build


def _apart(builder: Any, source: Any, pixels: int) -> list[Any]:
    """Load red, green and blue of interleaved pixels at an address."""
    byte, index = ir.IntType(8), ir.IntType(32)
    wide = ir.VectorType(byte, 3 * pixels)
    values = builder.load(builder.inttoptr(source, wide.as_pointer()), align=1)
    nothing, lanes = ir.Constant(wide, ir.Undefined), ir.VectorType(index, pixels)
    return [
        builder.shuffle_vector(
            values, nothing, ir.Constant(lanes, [3 * pixel + channel for pixel in range(pixels)])
        )
        for channel in range(3)
    ]


def _store_past(builder: Any, value: Any, target: Any) -> None:
    """Store a vector past the caches, at an address that is a multiple of `LINE`."""
    to = builder.inttoptr(target, value.type.as_pointer())
    store = builder.store(value, to, align=LINE)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))


@_intrinsic
def stream_pixels(typing: Any, target: Any, plane: Any, source: Any) -> Any:
    """Copy `LINE` interleaved pixels to three planes, so many bytes apart, past the caches.

    `target` and `plane` are multiples of `LINE`.
    """

    def build(context: Any, builder: Any, signature: Any, values: Any) -> None:
        target, plane, source = values
        for part in _apart(builder, source, LINE):
            _store_past(builder, part, target)
            target = builder.add(target, plane)

    return types.void(types.intp, types.intp, types.intp), build


@_intrinsic
def stream_floats(typing: Any, target: Any, plane: Any, source: Any, scale: Any, shift: Any) -> Any:
    """Copy as `stream_pixels`, as float32: x * scale + shift, in two roundings.

    `scale` and `shift` are three each.
    """

    def build(context: Any, builder: Any, signature: Any, values: Any) -> None:
        target, plane, source, scale, shift = values
        floats = ir.VectorType(ir.FloatType(), LINE)
        for channel, part in enumerate(_apart(builder, source, LINE)):
            s, t = (_spread(builder, builder.extract_value(v, channel)) for v in (scale, shift))
            made = builder.fadd(builder.fmul(builder.uitofp(part, floats), s), t)
            _store_past(builder, made, target)
            target = builder.add(target, plane)

    three = types.Tuple([types.float32] * 3)  # type: ignore[no-untyped-call]
    return types.void(types.intp, types.intp, types.intp, three, three), build


@_intrinsic
def stream_plane(typing: Any, target: Any, source: Any, scale: Any, shift: Any) -> Any:
    """Write `LINE` values of one channel as `stream_floats` does."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> None:
        target, source, scale, shift = values
        floats, bytes_ = (ir.VectorType(kind, LINE) for kind in (ir.FloatType(), ir.IntType(8)))
        part = builder.load(builder.inttoptr(source, bytes_.as_pointer()), align=1)
        s, t = _spread(builder, scale), _spread(builder, shift)
        made = builder.fadd(builder.fmul(builder.uitofp(part, floats), s), t)
        _store_past(builder, made, target)

    return types.void(types.intp, types.intp, types.float32, types.float32), build


def _spread(builder: Any, value: Any) -> Any:
    """Repeat a float32 in every lane of a line."""
    floats, index = ir.VectorType(ir.FloatType(), LINE), ir.IntType(32)
    nothing = ir.Constant(floats, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(index, 0))
    lanes = ir.Constant(ir.VectorType(index, LINE), [0] * LINE)
    return builder.shuffle_vector(first, nothing, lanes)


@_intrinsic
def finish(typing: Any) -> Any:
    """Wait for the stores past the caches, which other threads may see late."""

    def build(context: Any, builder: Any, signature: Any, nothing: Any) -> None:
        builder.fence("seq_cst")

    return types.void(), build


@compiled("void(intp, intp, intp)")
def stream(target: int, source: int, size: int) -> None:
    """Copy `size` bytes between two addresses. Call `finish` after the last one."""
    head = min((-target) % LINE, size)
    for at in range(head):
        _store_byte(target + at, source + at)
    lines = (size - head) // LINE
    for number in range(lines):
        at = head + number * LINE
        _store_line(target + at, source + at)
    for at in range(head + lines * LINE, size):
        _store_byte(target + at, source + at)


@compiled("void(intp, intp, intp, intp)")
def split(target: int, stride: int, source: int, pixels: int) -> None:
    """Separate interleaved pixels: red to the target, green and blue `stride` and twice that on."""
    green, blue = target + stride, target + 2 * stride
    whole = pixels // PIXELS * PIXELS
    for at in range(0, whole, PIXELS):
        _split_pixels(target + at, green + at, blue + at, source + 3 * at)
    for at in range(whole, pixels):
        _store_byte(target + at, source + 3 * at)
        _store_byte(green + at, source + 3 * at + 1)
        _store_byte(blue + at, source + 3 * at + 2)
