"""Resizing and normalisation of whole batches on their device.

For training loops that decode elsewhere: on the GPU, or with another library. `normalize_batch`
gives the bits of the kernels that the loader uses on the CPU. On the CPU, `resize_batch` and
`fit_batch` run these kernels. On a GPU they are matrix products, whose values differ by a grey
level in at most one of a hundred, and by two in very few, in the middle between two levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated

import torch
from torch import Tensor

from datapipe.declared import Count, Say, Within, checked
from datapipe.decode.normalize import Triple
from datapipe.decode.resize import Filter, fit_by_products, resize
from datapipe.errors import PlanError

_Above = Annotated[float, Within(above=0)]
_DTYPES = (torch.uint8, torch.float32, torch.bfloat16)


@checked(PlanError)
def normalize_batch(
    images: Tensor,
    mean_std: Annotated[
        tuple[Triple, tuple[_Above, _Above, _Above]],
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
        mean_std: of red, green and blue, for pixels from 0 to 1; None leaves them from 0 to 1.
        dtype: torch.float32 or torch.bfloat16; torch.uint8 without `mean_std`.
        channels_last: make the values of a pixel contiguous; for [N, 3, H, W].

    Returns:
        [N, 3, ...] of `dtype` on the device of `images`; `images` itself if nothing changes.

    Raises:
        PlanError: `images` has another dtype or shape, or the options contradict each other.
    """
    _check_pixels(images, "images")
    if images.ndim < 3 or images.shape[1] != 3 or (channels_last and images.ndim != 4):
        raise PlanError(
            f"images of shape {tuple(images.shape)}: give [N, 3, H, W]; channels_last takes "
            "nothing else"
        )
    if dtype not in _DTYPES:
        raise PlanError(f"dtype {dtype} is not one of {', '.join(map(str, _DTYPES))}")
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
    images: Tensor, height: Count, width: Count, filter: Filter = "bilinear"
) -> Tensor:
    """Resize images of one size, antialiased if they become smaller.

    Args:
        images: uint8 [N, 3, h, w] on any device.
        height, width: in pixels, at least 1.
        filter: "bilinear" or "bicubic", as Pillow means them.

    Returns:
        uint8 [N, 3, height, width] on the device of `images`; `images` itself at its own size.

    Raises:
        PlanError: `images` has another dtype or shape, or the options are impossible.
    """
    _check_pixels(images, "images")
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        raise PlanError(f"images of shape {tuple(images.shape)}: give [N, 3, H, W] with pixels")
    if images.shape[2:] == (height, width):
        return images
    if images.device.type == "cpu":
        return _by_kernels(images, height, width, filter)
    return fit_by_products(images, height, width, filter)


@checked(PlanError)
def fit_batch(
    images: Sequence[Tensor], height: Count, width: Count, filter: Filter = "bilinear"
) -> Tensor:
    """Stretch images of many sizes to one size, as one batch.

    Each image costs one kernel, a copy; the number of the others does not grow with the batch.

    Args:
        images: uint8 [3, h, w] each, on one device.
        height, width: in pixels, at least 1.
        filter: "bilinear" or "bicubic", as Pillow means them.

    Returns:
        uint8 [N, 3, height, width] on the device of `images`.

    Raises:
        PlanError: there are no images, one has another dtype or shape or is on another device, or
            the options are impossible.
    """
    if not len(images):
        raise PlanError("no images: without one it is not known which device the batch belongs on")
    device = images[0].device
    for number, image in enumerate(images):
        _check_pixels(image, f"image {number}")
        if image.ndim != 3 or image.shape[0] != 3 or 0 in image.shape:
            raise PlanError(f"image {number} of shape {tuple(image.shape)}: give [3, h, w]")
        if image.device != device:
            raise PlanError(
                f"image {number} is on {image.device}, the first one on {device}; put them on one"
            )
    if device.type == "cpu":
        return _by_kernels(images, height, width, filter)
    return fit_by_products(images, height, width, filter)


def zero_outside(pixels: Tensor, sizes: Tensor) -> Tensor:
    """Set the padding right of and below each image to zero, in place.

    Padding is zero after normalisation too; zero before it is black, which is not zero after it.

    Args:
        pixels: [N, C, H, W] of any dtype.
        sizes: int64 [N, 2] on the device of `pixels`: height and width of each image, in pixels.

    Returns:
        `pixels`.
    """
    rows = torch.arange(pixels.shape[2], device=pixels.device) >= sizes[:, :1]
    columns = torch.arange(pixels.shape[3], device=pixels.device) >= sizes[:, 1:]
    return pixels.masked_fill_(rows[:, None, :, None] | columns[:, None, None, :], 0)


def _check_pixels(images: Tensor, name: str) -> None:
    if images.dtype != torch.uint8:
        raise PlanError(f"{name}: {images.dtype} values; give torch.uint8, from 0 to 255")


@lru_cache(maxsize=64)
def _factors(
    mean_std: tuple[Triple, Triple] | None, device: torch.device, dims: int
) -> tuple[Tensor, Tensor]:
    """Return the factor of pixels, and the summand after it: float32 [3, 1, ...].

    Cached, since a copy to the device waits for all that was queued there before; since it did
    wait, every stream may read them.
    """
    mean, std = mean_std or ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    scale = [1 / (255 * s) for s in std]
    shift = [-m / s for m, s in zip(mean, std, strict=True)]
    with torch.inference_mode(False):
        values = torch.tensor([scale, shift], dtype=torch.float32, device="cpu").to(device)
        both = values.view(2, 3, *(1 for _ in range(dims)))
        return both[0], both[1]


def _by_kernels(
    images: Sequence[Tensor] | Tensor, height: int, width: int, filter: Filter
) -> Tensor:
    """Resize one image after the other, with the kernel that the loader uses on the CPU."""
    out = torch.empty((len(images), 3, height, width), dtype=torch.uint8, device="cpu")
    for image, resized in zip(images, out, strict=True):
        resized.copy_(resize(image, height, width, filter))
    return out
