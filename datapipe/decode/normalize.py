"""Pixels to what a model takes, written straight into a batch.

Batches are arrays here, in which bfloat16 is int16, since NumPy has no bfloat16. Not tensors: torch
gives up the interpreter's lock for each tensor that it makes or drops.

torch is slow at separating interleaved pixels. A kernel compiled by numba does all of the work in
one pass, three to four times as fast, and gives the same bits. It is loaded in the background once
a process has written as many pixels as some thousand images have; until then torch does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

from datapipe.array_types import Bools, Int64, UInt8
from datapipe.late_module import LateModule

Values = npt.NDArray[Any]
"""Values of a batch."""

Triple = tuple[float, float, float]
"""A value for each of red, green and blue."""

LOADED_AFTER = 2048 * 336 * 336
"""Pixels written with torch before the kernel is loaded.

Loading takes a second of a core, which the kernel makes up for within some ten thousand images; a
run that comes this far will come to those. And the first batch must not wait for it."""

STORED = {torch.uint8: np.uint8, torch.float32: np.float32, torch.bfloat16: np.int16}
"""Dtypes of a batch, and the type of their values in NumPy, which has no bfloat16."""

KERNEL = LateModule("datapipe.decode.pixel_kernels", after=LOADED_AFTER)
"""Kernel that writes pixels, of the whole process. Work is counted in pixels."""


class ImageMoves(NamedTuple):
    """Images that are written from one buffer to rows of a batch."""

    source: UInt8  # uint8 [n], the buffer
    starts: Int64  # int64 [k], index in `source` at which each image begins
    rows: Int64  # int64 [k], its row of the batch
    mirrored: Bools  # bool [k], whether left and right are exchanged


class Normalizer:
    """Writer of uint8 pixels as values of `dtype`, uint8, float32 or bfloat16. Thread-safe.

    Floating-point values are (x / 255 - mean) / std, worked out in float32 as x * scale + shift in
    two roundings; bfloat16 is rounded from that. uint8 is copied. Kernel and torch give equal bits.
    `mean_std` is for pixels from 0 to 1; None leaves them so.
    """

    def __init__(self, mean_std: tuple[Triple, Triple] | None, dtype: torch.dtype) -> None:
        assert dtype in STORED
        assert mean_std is None or dtype != torch.uint8
        self.dtype = dtype
        self.stored = np.dtype(STORED[dtype])
        self._scale, self._shift = factors(mean_std)
        self._constants = self._scale.numpy(), self._shift.numpy()

    def write(self, pixels: UInt8, out: Values) -> None:
        """Write an image into a batch: uint8 [h, w, 3] to [3, h, w], of any positive strides.

        Fastest with the pixels of a row contiguous, and in `out` the values of a row and channel.
        """
        height, width, _ = pixels.shape
        assert out.shape == (3, height, width)
        assert out.dtype == self.stored
        if not pixels.size:
            return
        pitch, step, channel = pixels.strides
        plane, row, value = (stride // out.itemsize for stride in out.strides)
        layout = height, width, pitch, plane, row
        is_plain = (channel, step, value) == (1, 3, 1)  # strides that the kernel takes
        if is_plain and (kernel := KERNEL.module) is not None:
            write = kernel.write_bfloat16 if self.dtype == torch.bfloat16 else kernel.write
            write(_flat(pixels), _flat(out), *self._constants, layout)
            return
        if is_plain:
            KERNEL.count(height * width)
        self._with_torch(pixels.transpose(2, 0, 1)[None], out[None])

    def write_planes(self, values: UInt8, out: Values) -> None:
        """Write what a `Normalizer` of uint8 wrote before, as one of this `dtype` would have.

        `values` are uint8 [n, 3, ...], contiguous; `out` has the same shape, and any strides.
        """
        assert values.shape == out.shape
        kernel = KERNEL.module
        if self.dtype == torch.uint8:
            out[...] = values
        elif self.dtype == torch.float32 and out.flags.c_contiguous and kernel is not None:
            count = 3 * len(values)
            length = values.size // max(count, 1)
            flat = values.reshape(-1), out.reshape(-1)
            kernel.write_planes(*flat, *self._constants, count, length)
        else:
            if kernel is None:
                KERNEL.count(values.size // 3)
            self._with_torch(values, out)

    def gather(
        self, moves: Sequence[ImageMoves], out: Values, *, interleaved: bool = False
    ) -> bool:
        """Write many images at once, as `write_planes` does; return False if no kernel can.

        Images are [3, h, w], or [h, w, 3] if `interleaved`; `out` is [N, 3, h, w] of `dtype`.
        """
        kernel = KERNEL.module
        if not out.flags.c_contiguous or self.dtype == torch.bfloat16:
            return False
        length, width = out[:1].size, out.shape[-1]
        if kernel is None:
            if self.dtype == torch.uint8:  # others are counted by `write_planes`
                KERNEL.count(sum(len(each.starts) for each in moves) * length // 3)
            return False
        sources, *columns = zip(*moves, strict=True)
        places = (*map(np.concatenate, columns), length, width)
        ends = np.cumsum([0, *(len(each.starts) for each in moves)])
        listed = kernel.sources_of(sources)
        kernel.gather(listed, ends, out.reshape(-1), *self._constants, places, interleaved)
        return True

    def _with_torch(self, values: UInt8, out: Values) -> None:
        """Write uint8 [n, 3, ...], of any positive strides, as `dtype`."""
        planes, target = torch.from_numpy(values), tensor_of(out, self.dtype)
        if self.dtype == torch.uint8:
            target.copy_(planes)
            return
        shape = (3, *(1 for _ in values.shape[2:]))
        scale, shift = self._scale.view(shape), self._shift.view(shape)
        # Each step alone: torch is slow where it changes type and order at once, and a fused
        # multiplication and addition would round once.
        planes = planes.contiguous()
        if self.dtype == torch.float32:
            target.copy_(planes).mul_(scale).add_(shift)
        else:
            target.copy_(planes.to(torch.float32).mul_(scale).add_(shift))


def array_of(values: Tensor) -> Values:
    """Return the values of a tensor as an array that shares its memory."""
    return (values.view(torch.int16) if values.dtype == torch.bfloat16 else values).numpy()


def tensor_of(values: Values, dtype: torch.dtype) -> Tensor:
    """Return the tensor of `dtype` whose values `array_of` returned."""
    return torch.from_numpy(values).view(dtype)


def factors(mean_std: tuple[Triple, Triple] | None) -> Tensor:
    """Return what pixels are multiplied by, and what is added then: float32 [2, 3], on the CPU."""
    mean, std = mean_std or ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    scale = [1 / (255 * s) for s in std]
    shift = [-m / s for m, s in zip(mean, std, strict=True)]
    return torch.tensor([scale, shift], dtype=torch.float32, device="cpu")


def _flat(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the memory from an array's first value to its last, of any positive strides."""
    if values.flags.c_contiguous:
        return values.reshape(-1)
    ends = zip(values.shape, values.strides, strict=True)
    size = 1 + sum((side - 1) * stride for side, stride in ends) // values.itemsize
    return as_strided(values, (size,), (values.itemsize,))
