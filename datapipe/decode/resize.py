"""Antialiased resizing of uint8 images, on the CPU and on GPUs.

torch's kernel for uint8 resizes to the new width and then to the new height, rounding to a byte
after each, as Pillow does before version 13 (which begins with the height if that is much reduced:
bicubic weights overshoot black and white, and clipped in another order they differ by up to 10 grey
levels at sharp edges). Each pass agrees with Pillow's to one grey level; of both together, one
value in a million differs by two.

The kernel is made for interleaved pixels. For other strides it rearranges the result, which takes
half as long as the resizing.

On GPUs the filter's weights are a matrix, applied across and then down, with grey levels rounded in
between as Pillow does. torch's own antialiased kernel takes no uint8 on CUDA and one size a call.
It fails if an image shrinks so much that a block's shared memory does not hold the filter's window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

Filter = Literal["bilinear", "bicubic"]
"""Weights of the pixels around a point: a triangle, or Keys' cubic with a = -0.5."""

_AT_ONCE = 1 << 28  # bytes of float32 pixels that are resized at once


def resize(image: Tensor, height: int, width: int, filter: Filter = "bilinear") -> Tensor:
    """Resize an image, antialiased if it becomes smaller.

    Args:
        image: uint8 [3, h, w], of any strides; fastest with interleaved, contiguous pixels.
        height, width: in pixels, at least 1.
        filter: "bilinear" or "bicubic".

    Returns:
        uint8 [3, height, width], a view of interleaved pixels; or the image itself, if it has this
        size already.
    """
    if image.shape[1:] == (height, width):
        return image
    resized: Tensor = interpolate(
        _interleaved(image),
        size=(height, width),
        mode=filter,
        antialias=True,
        align_corners=False,
    )
    return resized[0]


def _interleaved(image: Tensor) -> Tensor:
    """Return the image as [1, 3, h, w], with the strides that torch calls channels_last."""
    # By NumPy: each view that torch makes releases the GIL, and other threads take it.
    pixels = np.ascontiguousarray(image.numpy().transpose(1, 2, 0))
    # Not pixels[None]: its first stride would be 0, which is no layout that torch knows.
    return torch.from_numpy(pixels.reshape(1, *pixels.shape).transpose(0, 3, 1, 2))


def fit_by_products(
    images: Sequence[Tensor] | Tensor, height: int, width: int, filter: Filter
) -> Tensor:
    """Stretch images to one size, on the device they are on.

    Args:
        images: uint8 [N, 3, h, w]; or [3, h, w] each, at least one.
        height, width: in pixels, at least 1.
        filter: "bilinear" or "bicubic".

    Returns:
        uint8 [N, 3, height, width].
    """
    if isinstance(images, Tensor):
        device, sizes = images.device, [(images.shape[2], images.shape[3])] * len(images)
    else:
        device = images[0].device
        sizes = [(image.shape[1], image.shape[2]) for image in images]
    out = torch.empty((len(images), 3, height, width), dtype=torch.uint8, device=device)
    start = 0
    # Half precision would cost several grey levels.
    with torch.autocast(device.type, enabled=False), torch.no_grad():
        while start < len(images):
            stop, tallest, widest = _reach(sizes, start)
            part = images[start:stop]
            down = _weights([h for h, _ in sizes[start:stop]], tallest, height, filter, device)
            across = _weights([w for _, w in sizes[start:stop]], widest, width, filter, device)
            # Rows outermost, then channels: then neither product has to repeat its weights.
            lines = _lines(part, tallest, widest).flatten(1, 2)
            lines = _grey(_sum(_times(lines, some.mT) for some in _exact(across)))
            lines = lines.view(len(part), tallest, 3 * width)
            done = _grey(_sum(_times(some, lines) for some in _exact(down)))
            done = done.view(len(part), height, 3, width)
            out[start:stop] = done.permute(0, 2, 1, 3)
            start = stop
    return out


def _exact(weights: Tensor) -> tuple[Tensor, ...]:
    """Return tensors whose sum is `weights`, and which products on their device do not round.

    Where TF32 is on, factors keep 10 of their 23 bits of mantissa. That is enough for grey levels,
    but 3 % of all values would differ with weights of 10 bits.
    """
    if weights.device.type != "cuda" or not _rounds_factors():
        return (weights,)
    return _split(weights)


def _split(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first 10 bits of mantissa, and what is left."""
    first = (weights.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return first, weights - first


def _rounds_factors() -> bool:
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # it was set through the newer interface, whose answer differs
        return True


def _times(left: Tensor, right: Tensor) -> Tensor:
    return left @ right


def _sum(products: Iterable[Tensor]) -> Tensor:
    return reduce(Tensor.add_, products)


def _reach(sizes: Sequence[tuple[int, int]], start: int) -> tuple[int, int, int]:
    """Return the end of the next images within memory, and their greatest height and width."""
    stop, (tallest, widest) = start + 1, sizes[start]
    while stop < len(sizes):
        height, width = max(tallest, sizes[stop][0]), max(widest, sizes[stop][1])
        if (stop + 1 - start) * height * width * 12 > _AT_ONCE:
            break
        stop, tallest, widest = stop + 1, height, width
    return stop, tallest, widest


def _lines(images: Sequence[Tensor] | Tensor, height: int, width: int) -> Tensor:
    """Return images as float32 [N, height, 3, width], zero beyond each."""
    if isinstance(images, Tensor):
        lines = images.permute(0, 2, 1, 3)
        return lines.to(torch.float32, memory_format=torch.contiguous_format)
    out = torch.zeros((len(images), height, 3, width), dtype=torch.float32, device=images[0].device)
    for image, lines in zip(images, out, strict=True):
        lines[: image.shape[1], :, : image.shape[2]].copy_(image.permute(1, 0, 2))
    return out


def _grey(values: Tensor) -> Tensor:
    """Round to grey levels in place; halves go up, as with Pillow between its two passes."""
    return values.add_(0.5).floor_().clamp_(0, 255)


def _weights(
    old: Sequence[int], longest: int, new: int, filter: Filter, device: torch.device
) -> Tensor:
    """Return the filter's weights, float32 [N, new, longest]; [new, longest] for equal lengths.

    They are those of Pillow's ImagingResample: a triangle, or Keys' cubic with a = -0.5, as wide as
    a pixel of the result if the image becomes smaller; they add up to 1 inside the image.
    """
    equal = len(set(old)) == 1
    lengths: Tensor | int = old[0]
    if not equal:
        host = torch.tensor(old, dtype=torch.float32, device="cpu").view(-1, 1, 1)
        # From pageable memory the copy would wait for all that was queued before.
        host = host.pin_memory() if device.type == "cuda" else host
        lengths = host.to(device, non_blocking=True)
    scale = lengths / new
    stretch = scale.clamp(min=1) if isinstance(scale, Tensor) else max(scale, 1.0)
    centres = (torch.arange(new, dtype=torch.float32, device=device) + 0.5).view(-1, 1) * scale
    positions = torch.arange(longest, dtype=torch.float32, device=device) + 0.5
    distance = ((positions - centres) / stretch).abs_()
    if filter == "bilinear":
        weights = (1 - distance).clamp_(min=0)
    else:
        inner = (1.5 * distance - 2.5) * distance * distance + 1
        outer = ((2.5 - 0.5 * distance) * distance - 4) * distance + 2
        weights = torch.where(distance < 1, inner, torch.where(distance < 2, outer, 0.0))
    if not equal:
        weights = weights * (positions < lengths)
    return weights / weights.sum(dim=-1, keepdim=True)
