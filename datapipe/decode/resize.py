"""Antialiased resizing of uint8 images, on the CPU and on GPUs.

torch's kernel for uint8 resizes to the new width and then to the new height, rounding to a byte
after each, as Pillow does before version 13 (which begins with the height if that is much reduced:
bicubic weights overshoot black and white, and clipped in another order they differ by up to 10 grey
levels at sharp edges). Each pass agrees with Pillow's to one grey level; of both together, one
value in a million differs by two.

The kernel is made for interleaved pixels. For other strides it rearranges the result, which takes
half as long as the resizing. Around it everything is NumPy: torch gives up the interpreter's lock
for each tensor that it makes or drops, and beside many decoding threads to get it back takes time.

On GPUs the filter's weights are a matrix, applied across and then down, with grey levels rounded in
between as Pillow does. torch's own antialiased kernel takes no uint8 on CUDA, and fails if an image
shrinks so much that a block's shared memory does not hold the filter's window.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from datapipe.array_types import UInt8

Filter = Literal["bilinear", "bicubic", "lanczos"]
"""Weights of the pixels around a point: a triangle, Keys' cubic (a = -0.5), or Lanczos' (a = 3)."""

Product = Literal["bilinear", "bicubic"]
"""Filters that devices other than the CPU have."""

_LANCZOS = torch.__version__ >= "2.13"  # a `TorchVersion`, compared by its numbers

_AT_ONCE = 1 << 28  # bytes of float32 pixels that are resized at once


def resize(pixels: UInt8, height: int, width: int, filter: Filter = "bilinear") -> UInt8:
    """Resize an image, antialiased if it becomes smaller: uint8 [h, w, 3] to [height, width, 3].

    Strides may be any that are positive; contiguous pixels are fastest, and the result is such; or
    it is `pixels`, if they have this size. "lanczos" is Pillow's with torch before 2.13, and takes
    seven times as long there.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    pixels = np.ascontiguousarray(pixels)
    if filter == "lanczos" and not _LANCZOS:
        resized = Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS)
        return np.array(resized)
    fitted: Tensor = interpolate(
        # Not pixels[None]: its first stride would be 0, which is no layout that torch knows.
        torch.from_numpy(pixels.reshape(1, *pixels.shape).transpose(0, 3, 1, 2)),
        size=(height, width),
        mode=filter,
        antialias=True,
        align_corners=False,
    )
    result: UInt8 = fitted.numpy()[0].transpose(1, 2, 0)
    return result


def resize_by_products(images: Tensor, height: int, width: int, filter: Product) -> Tensor:
    """Resize images of one size where they are: uint8 [N, 3, h, w] to [N, 3, height, width]."""
    device, (*_, old_height, old_width) = images.device, images.shape
    out = torch.empty((len(images), 3, height, width), dtype=torch.uint8, device=device)
    down, rest_down = _exact(_weights(old_height, height, filter, device))
    across, rest_across = _exact(_weights(old_width, width, filter, device))
    together = max(1, _AT_ONCE // (12 * old_height * old_width))
    # Half precision would cost several grey levels.
    with torch.autocast(device.type, enabled=False), torch.no_grad():
        for start in range(0, len(images), together):
            pixels = images[start : start + together].to(torch.float32)
            lines = _grey(pixels @ across.mT + pixels @ rest_across.mT)
            out[start : start + together] = _grey(down @ lines + rest_down @ lines)
    return out


def _exact(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return two tensors whose sum is `weights`, and which tensor cores do not round.

    With TF32, factors keep 10 of their 23 bits of mantissa. That is enough for grey levels, but
    with weights of 10 bits 3 % of all values would differ.
    """
    first = (weights.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return first, weights - first


def _grey(values: Tensor) -> Tensor:
    """Round to grey levels in place; halves go up, as with Pillow between its two passes."""
    return values.add_(0.5).floor_().clamp_(0, 255)


def _weights(old: int, new: int, filter: Filter, device: torch.device) -> Tensor:
    """Return the filter's weights, float32 [new, old].

    They are those of Pillow's ImagingResample: a triangle, or Keys' cubic with a = -0.5, as wide as
    a pixel of the result if the image becomes smaller; they add up to 1 inside the image.
    """
    scale = old / new
    centres = (torch.arange(new, dtype=torch.float32, device=device) + 0.5).view(-1, 1) * scale
    positions = torch.arange(old, dtype=torch.float32, device=device) + 0.5
    distance = ((positions - centres) / max(scale, 1.0)).abs_()
    if filter == "bilinear":
        weights = (1 - distance).clamp_(min=0)
    else:
        inner = (1.5 * distance - 2.5) * distance * distance + 1
        outer = ((2.5 - 0.5 * distance) * distance - 4) * distance + 2
        weights = torch.where(distance < 1, inner, torch.where(distance < 2, outer, 0.0))
    return weights / weights.sum(dim=-1, keepdim=True)
