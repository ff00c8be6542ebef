"""Images of preference pairs, which both answers of a pair are given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_PIXELS = "pixel_values"
_BY_IMAGE = ("image_grid_thw", "image_sizes")
_NESTED = 5  # axes of pixel_values with one in front of those of its rows


def repeat_images(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch with the images of all chosen rows, and again for all rejected ones.

    They are decoded, and copied to a device, once.
    """
    repeated = {}
    for name in (_PIXELS, *_BY_IMAGE):
        values = batch.get(name)
        if isinstance(values, Tensor):
            axis = 1 if name == _PIXELS and values.ndim == _NESTED else 0
            both = torch.cat([values, values], axis)
            repeated[name] = both.pin_memory() if values.is_pinned() else both
    return batch | repeated
