"""Resizing and normalisation of whole batches on their device.

For training loops that decode elsewhere: on the GPU, or with another library. `normalize_batch`
gives the bits of the kernels that the loader uses on the CPU. On the CPU, `resize_batch` runs these
kernels. On a GPU it is two matrix products, whose values differ by a grey level in at most one of a
hundred, and by two in very few, in the middle between two levels.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

import torch
from torch import Tensor

from datapipe.declared import Count, Positive, Say, checked
from datapipe.decode.normalize import STORED, Triple, factors
from datapipe.decode.resize import Product, resize, resize_by_products
from datapipe.errors import PlanError


@checked(PlanError)
def normalize_batch(
    images: Tensor,
    mean_std: Annotated[
        tuple[Triple, tuple[Positive, Positive, Positive]],
        Say("(mean, std) of three values each, std above 0"),
    ]
    | None,
    dtype: torch.dtype,
    *,
    channels_last: bool = False,
) -> Tensor:
    """Normalise pixels for a model: (x / 255 - mean) / std.

    Args:
        images: uint8 [N, 3, ...] on any device: [N, 3, H, W], or patches [P, 3, values].
        mean_std: mean and standard deviation of red, green and blue, for pixels from 0 to 1; None
            leaves pixels from 0 to 1.
        dtype: torch.float32 or torch.bfloat16; torch.uint8 without `mean_std`.
        channels_last: make the values of a pixel contiguous; for [N, 3, H, W].

    Returns:
        [N, 3, ...] of `dtype` on the device of `images`; `images` itself if nothing changes.

    Raises:
        PlanError: `images` has another dtype or shape, or the options contradict each other.
    """
    _check_pixels(images)
    if images.ndim < 3 or images.shape[1] != 3 or (channels_last and images.ndim != 4):
        raise PlanError(
            f"images of shape {tuple(images.shape)}: give [N, 3, H, W]; channels_last takes "
            "nothing else"
        )
    if dtype not in STORED:
        raise PlanError(f"dtype {dtype} is not one of {', '.join(map(str, STORED))}")
    layout = torch.channels_last if channels_last else torch.contiguous_format
    if dtype == torch.uint8:
        if mean_std is not None:
            raise PlanError(
                "normalised values do not fit into torch.uint8; give torch.float32 or "
                "torch.bfloat16, or mean_std=None"
            )
        return images.contiguous(memory_format=layout) if channels_last else images
    scale, shift = _factors(mean_std, images.device, images.ndim - 2)
    out = torch.empty(images.shape, dtype=dtype, device=images.device, memory_format=layout)
    # One fused kernel would round once, where the CPU's rounds twice: bits would differ.
    if dtype == torch.float32:
        return torch.mul(images, scale, out=out).add_(shift)
    return torch.add(torch.mul(images, scale), shift, out=out)


@checked(PlanError)
def resize_batch(
    images: Tensor, height: Count, width: Count, filter: Product = "bilinear"
) -> Tensor:
    """Resize images of one size, antialiased if they become smaller.

    Args:
        images: uint8 [N, 3, h, w] on any device.
        height, width: new size in pixels, at least 1.
        filter: "bilinear" or "bicubic", as Pillow means them.

    Returns:
        uint8 [N, 3, height, width] on the device of `images`; `images` itself at its own size.

    Raises:
        PlanError: `images` has another dtype or shape, or the options are impossible.
    """
    _check_pixels(images)
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        raise PlanError(f"images of shape {tuple(images.shape)}: give [N, 3, H, W] with pixels")
    if images.shape[2:] == (height, width):
        return images
    if images.device.type == "cpu":
        arrays = images.permute(0, 2, 3, 1).numpy()
        resized = [resize(pixels, height, width, filter) for pixels in arrays]
        return torch.stack([torch.from_numpy(pixels).permute(2, 0, 1) for pixels in resized])
    return resize_by_products(images, height, width, filter)


def zero_outside(pixels: Tensor, sizes: Tensor) -> Tensor:
    """Zero the padding right of and below each image in `pixels`, [N, C, H, W], and return them.

    Padding is zero after normalisation too; zero before it is black, which is not zero after it.
    `sizes` are height and width of each image in pixels, int64 [N, 2], on the same device.
    """
    rows = torch.arange(pixels.shape[2], device=pixels.device) >= sizes[:, :1]
    columns = torch.arange(pixels.shape[3], device=pixels.device) >= sizes[:, 1:]
    return pixels.masked_fill_(rows[:, None, :, None] | columns[:, None, None, :], 0)


def _check_pixels(images: Tensor) -> None:
    if images.dtype != torch.uint8:
        raise PlanError(f"images: {images.dtype} values; give torch.uint8, from 0 to 255")


@lru_cache(maxsize=64)
def _factors(
    mean_std: tuple[Triple, Triple] | None, device: torch.device, dims: int
) -> tuple[Tensor, Tensor]:
    """Return the factor of pixels, and the summand after it: float32 [3, 1, ...].

    Cached, since a copy to the device waits for all that was queued there before; since it did
    wait, every stream may read them.
    """
    with torch.inference_mode(False):
        both = factors(mean_std).to(device).view(2, 3, *(1 for _ in range(dims)))
        return both[0], both[1]
