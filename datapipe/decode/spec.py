"""What the loader makes of an image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from datapipe.decode.image import MAX_PIXELS
from datapipe.errors import PlanError

Resize = Literal["stretch", "pad", "crop"]
Normalization = str | tuple[tuple[float, float, float], tuple[float, float, float]]

NORMALIZATIONS: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    # torchvision's models; OpenAI CLIP's preprocessing; SigLIP's preprocessing. RGB, of 0 to 1.
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "siglip": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}

_MAX_SIDE = 65_535
_DTYPES = (torch.uint8, torch.float32, torch.bfloat16)


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """Size, fit and number format of images in a batch.

    Attributes:
        size: side of a square in pixels, or (height, width).
        resize: "stretch" ignores the aspect ratio; "pad" fits the image inside and fills the rest;
            "crop" covers the whole and keeps the centre. All are bilinear and antialiased.
        normalize: None, "imagenet", "clip", "siglip", or (mean, std) per channel for values of
            0 to 1.
        dtype: torch.uint8 (0 to 255, without normalisation), torch.float32 or torch.bfloat16 (0 to
            1 before normalisation). None is uint8 without normalisation and float32 with it.
        fill: RGB of the padding, 0 to 255; None is the mean that is subtracted, or black.
        max_pixels: an image with more is refused as a `DecodeError`.

    Raises:
        PlanError: a value is not one of these, or they contradict each other.
    """

    size: int | tuple[int, int] = 336
    resize: Resize = "stretch"
    normalize: Normalization | None = None
    dtype: torch.dtype | None = None
    fill: tuple[int, int, int] | None = None
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        sides = (self.size,) if isinstance(self.size, int) else self.size
        if not (
            isinstance(sides, tuple)
            and len(sides) == (1 if isinstance(self.size, int) else 2)
            and all(type(side) is int and 1 <= side <= _MAX_SIDE for side in sides)
        ):
            raise PlanError(
                f"image size {self.size!r}: give a side or (height, width), each a number of "
                f"pixels from 1 to {_MAX_SIDE:,}"
            )
        if not isinstance(self.max_pixels, int) or not 1 <= self.max_pixels <= MAX_PIXELS:
            raise PlanError(
                f"max_pixels {self.max_pixels!r}: give a number from 1 to {MAX_PIXELS:,}, which is "
                "Pillow's own limit"
            )
        if self.fill is not None and not (
            isinstance(self.fill, tuple)
            and len(self.fill) == 3
            and all(0 <= value <= 255 for value in self.fill)
        ):
            raise PlanError(f"fill {self.fill!r} is not (red, green, blue) of 0 to 255 each")
        if self.resize not in ("stretch", "pad", "crop"):
            raise PlanError(f"resize {self.resize!r} is not one of 'stretch', 'pad', 'crop'")
        if isinstance(self.normalize, str) and self.normalize not in NORMALIZATIONS:
            raise PlanError(
                f"normalize {self.normalize!r} is not one of "
                f"{', '.join(map(repr, NORMALIZATIONS))}; give (mean, std) for other values"
            )
        if self.mean_std is not None:
            mean, std = self.mean_std
            if not (all(0 <= m <= 1 for m in mean) and all(0 < s < math.inf for s in std)):
                raise PlanError(
                    f"normalize {self.normalize!r}: means lie between 0 and 1, standard deviations "
                    "above 0, for pixel values from 0 to 1; divide those for 0 to 255 by 255"
                )
        if self.dtype is not None and self.dtype not in _DTYPES:
            raise PlanError(f"dtype {self.dtype} is not one of {', '.join(map(str, _DTYPES))}")
        if self.dtype == torch.uint8 and self.normalize is not None:
            raise PlanError(
                "normalised values do not fit into torch.uint8; use torch.float32 or "
                "torch.bfloat16, or normalize=None"
            )

    @property
    def height(self) -> int:
        return self.size if isinstance(self.size, int) else self.size[0]

    @property
    def width(self) -> int:
        return self.size if isinstance(self.size, int) else self.size[1]

    @property
    def out_dtype(self) -> torch.dtype:
        """Dtype of `pixel_values`."""
        if self.dtype is not None:
            return self.dtype
        return torch.uint8 if self.normalize is None else torch.float32

    @property
    def mean_std(self) -> tuple[tuple[float, float, float], tuple[float, float, float]] | None:
        """(mean, std) per channel, None without normalisation."""
        if isinstance(self.normalize, str):
            return NORMALIZATIONS[self.normalize]
        if self.normalize is None:
            return None
        try:
            mean, std = (tuple(float(v) for v in values) for values in self.normalize)
        except (TypeError, ValueError):
            mean, std = (), ()
        if len(mean) != 3 or len(std) != 3:
            raise PlanError(f"normalize {self.normalize!r} is not (mean, std) of three values each")
        return (mean[0], mean[1], mean[2]), (std[0], std[1], std[2])

    @property
    def fill_color(self) -> tuple[int, int, int]:
        """RGB of the padding, 0 to 255."""
        if self.fill is not None:
            return self.fill
        mean = self.mean_std[0] if self.mean_std else (0.0, 0.0, 0.0)
        return round(mean[0] * 255), round(mean[1] * 255), round(mean[2] * 255)
