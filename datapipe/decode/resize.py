"""Antialiased resizing of uint8 images.

torch's kernel for uint8. It resizes to the new width and then to the new height, rounding to a byte
after each, as Pillow does before version 13 (which begins with the height where that is much
reduced: bicubic weights overshoot black and white, and cut off in another order they differ by up
to 10 grey levels at sharp edges). Each pass agrees with Pillow's to one grey level; of both
together, one value in a million differs by two.

The kernel is made for images whose pixels lie one after another; of anything else, or of an image
whose strides do not say so, it rearranges the result, which takes half as long as the resizing.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

Filter = Literal["bilinear", "bicubic"]
"""How the pixels around a place are weighed: by a triangle, or by Keys' cubic with a = -0.5."""


def resize(image: Tensor, height: int, width: int, filter: Filter = "bilinear") -> Tensor:
    """The image at another size, antialiased where it becomes smaller.

    Args:
        image: uint8 [3, h, w], of any strides; fastest where pixels lie tightly one after another.
        height, width: in pixels, at least 1.
        filter: "bilinear" or "bicubic".

    Returns:
        uint8 [3, height, width], a view of pixels that lie one after another; or the image itself,
        where it has this size already.
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
    """[1, 3, h, w] with the strides that torch calls channels_last."""
    # By NumPy: each view that torch makes lets go of Python's lock, and other threads take it.
    pixels = np.ascontiguousarray(image.numpy().transpose(1, 2, 0))
    # Not pixels[None]: its first stride would be 0, which is no layout that torch knows.
    return torch.from_numpy(pixels.reshape(1, *pixels.shape).transpose(0, 3, 1, 2))
