"""Compiled copies past the processor's caches, which keep what the interpreter works with,
and pixels taken apart.

A batch is larger than a core's caches, and nobody reads it before all of it is written. Ordinary
stores would fetch each line of it from memory first, push everything else out, and leave it to
whoever comes next to fetch that again: after a copy of five megabytes, Python runs at a third of
its speed. Non-temporal stores do neither.

See the Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter on cacheability
control; LLVM leaves the hint out where a processor has no such stores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic as _intrinsic_of_numba

UInt8 = npt.NDArray[np.uint8]

LINE = 64
"""Bytes of a cache line, which such stores write as a whole."""

PIXELS = 32
"""Pixels that are taken apart at once: a 256-bit register of each channel."""

_log = logging.getLogger(__name__)
_Function = TypeVar("_Function", bound=Callable[..., object])
_intrinsic: Callable[..., Any] = _intrinsic_of_numba  # whose types hide that calls differ


def compiled(signature: Any) -> Callable[[_Function], _Function]:
    """Compile a function for these types now, or take it from numba's cache.

    `signature` is a string, or what numba makes of one.
    """

    def compile(function: _Function) -> _Function:
        try:
            return cast(_Function, numba.njit(signature, cache=True, nogil=True)(function))
        except RuntimeError as error:
            # numba found no folder to write to: each process compiles for itself.
            _log.info("the kernels of images are compiled anew in each process: %s", error)
            return cast(_Function, numba.njit(signature, nogil=True)(function))

    return compile


@_intrinsic
def _store_line(typing: Any, target: Any, source: Any) -> Any:
    """Copy a line between two addresses; that of the target is a multiple of `LINE`."""

    def build(context: Any, builder: Any, signature: Any, addresses: Any) -> None:
        line = ir.VectorType(ir.IntType(64), LINE // 8)
        to, start = (builder.inttoptr(address, line.as_pointer()) for address in addresses)
        store = builder.store(builder.load(start, align=1), to, align=LINE)
        hint = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        store.set_metadata("nontemporal", hint)

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
    """Take `PIXELS` interleaved pixels apart, all between addresses.

    Written as one load and three shuffles, which LLVM knows instructions for; from a loop over
    every third byte it makes code of a third of the speed.
    """

    def build(context: Any, builder: Any, signature: Any, addresses: Any) -> None:
        byte, index = ir.IntType(8), ir.IntType(32)
        wide, narrow = ir.VectorType(byte, 3 * PIXELS), ir.VectorType(byte, PIXELS)
        pixels = builder.load(builder.inttoptr(addresses[3], wide.as_pointer()), align=1)
        nothing = ir.Constant(wide, ir.Undefined)
        for channel in range(3):
            lanes = [3 * pixel + channel for pixel in range(PIXELS)]
            mask = ir.Constant(ir.VectorType(index, PIXELS), lanes)
            values = builder.shuffle_vector(pixels, nothing, mask)
            to = builder.inttoptr(addresses[channel], narrow.as_pointer())
            builder.store(values, to, align=1)

    return types.void(types.intp, types.intp, types.intp, types.intp), build


@_intrinsic
def finish(typing: Any) -> Any:
    """Whoever is told afterwards that something was written sees it: such stores may be late."""

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


@compiled("void(uint8[::1], uint8[::1], uint8[::1], intp, intp)")
def split(red: UInt8, green: UInt8, blue: UInt8, source: int, pixels: int) -> None:
    """Take interleaved pixels at an address apart."""
    to_red, to_green, to_blue = red.ctypes.data, green.ctypes.data, blue.ctypes.data
    whole = pixels // PIXELS * PIXELS
    for at in range(0, whole, PIXELS):
        _split_pixels(to_red + at, to_green + at, to_blue + at, source + 3 * at)
    for at in range(whole, pixels):
        _store_byte(to_red + at, source + 3 * at)
        _store_byte(to_green + at, source + 3 * at + 1)
        _store_byte(to_blue + at, source + 3 * at + 2)
