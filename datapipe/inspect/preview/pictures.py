"""Images for a page: as data URLs, small enough that many fit into one file."""

from __future__ import annotations

import base64
import io
import warnings
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from datapipe.decode.spec import ImageSpec

_SIDE = 336
_TILE = 144
"""Longest side in pixels of an image, and of one of several tiles of it."""
_ORIGINAL = 280
FRAME = 112
"""Longest side of a frame of a video."""
_QUALITY = 78


def show_values(pictures: Tensor, spec: ImageSpec) -> list[str]:
    """Return data URLs of the pictures of an image, [n, 3, h, w] as normalised for a model."""
    values = pictures.float()
    if pictures.dtype != torch.uint8:
        mean, std = spec.mean_std or ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        values = 255 * (values * torch.tensor(std).view(3, 1, 1) + torch.tensor(mean).view(3, 1, 1))
    pixels = values.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()
    side = _SIDE if len(pixels) == 1 else _TILE
    return [_url(Image.fromarray(np.ascontiguousarray(each)), side) for each in pixels]


def show_file(data: bytes | memoryview, side: int = _ORIGINAL) -> str:
    """Return a data URL of an image file, upright; empty if it cannot be decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image: Any = Image.open(io.BytesIO(data))
            image.draft("RGB", (side, side))
            return _url(ImageOps.exif_transpose(image).convert("RGB"), side)
    except Exception:  # Pillow raises errors of many kinds, and this is the image that failed
        return ""


def _url(image: Image.Image, side: int) -> str:
    image.thumbnail((side, side), Image.Resampling.BILINEAR)
    out = io.BytesIO()
    image.save(out, "WEBP", quality=_QUALITY, method=2)
    return f"data:image/webp;base64,{base64.b64encode(out.getvalue()).decode()}"
