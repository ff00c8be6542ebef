"""Decoded pixels to a place in a batch: resize on uint8, normalise last, written in place.

The resize is torch's antialiased kernel on uint8, which agrees with Pillow's bilinear filter to
one grey level.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from datapipe.decode.image import Pixels, decode_rgb
from datapipe.decode.spec import ImageSpec

_LONGEST = 32  # times the aspect ratio asked for


class ImageTransform:
    """Writes images into rows of `pixel_values` as an `ImageSpec` says. Thread-safe."""

    def __init__(self, spec: ImageSpec) -> None:
        self.spec = spec
        self.shape = (3, spec.height, spec.width)
        self.dtype = spec.out_dtype
        mean, std = spec.mean_std or ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        self._scale = _channels([1 / (255 * s) for s in std], torch.float32)
        self._shift = _channels([-m / s for m, s in zip(mean, std, strict=True)], torch.float32)
        self._fill = _channels(spec.fill_color, torch.uint8)

    def decode(self, data: bytes) -> Pixels:
        """Encoded bytes to upright RGB, uint8 [h, w, 3].

        Raises:
            DecodeError: see `decode_rgb`.
        """
        return decode_rgb(data, max_pixels=self.spec.max_pixels)

    def place(self, pixels: Pixels, out: Tensor) -> None:
        """Fit uint8 [h, w, 3] pixels into `out`, [3, height, width] of the spec's dtype."""
        fitted = self._fit(torch.from_numpy(pixels).permute(2, 0, 1))
        if self.dtype == torch.uint8:
            out.copy_(fitted)
        elif self.dtype == torch.float32:
            # Two passes in place: every fused form measured slower for mixed types.
            out.copy_(fitted)
            out.mul_(self._scale).add_(self._shift)
        else:
            out.copy_(fitted.to(torch.float32).mul_(self._scale).add_(self._shift))

    def _fit(self, image: Tensor) -> Tensor:
        height, width = self.spec.height, self.spec.width
        if self.spec.resize == "stretch":
            return _resize(image, height, width)
        if self.spec.resize == "crop":
            image = _bounded(image, height, width)
            _, old_height, old_width = image.shape
            new_height, new_width = _cover(old_height, old_width, height, width)
            top, left = (new_height - height) // 2, (new_width - width) // 2
            covering = _resize(image, new_height, new_width)
            return covering[:, top : top + height, left : left + width]
        _, old_height, old_width = image.shape
        new_height, new_width = _contain(old_height, old_width, height, width)
        top, left = (height - new_height) // 2, (width - new_width) // 2
        canvas = self._fill.expand(3, height, width).contiguous()
        canvas[:, top : top + new_height, left : left + new_width] = _resize(
            image, new_height, new_width
        )
        return canvas


def _channels(values: Sequence[float], dtype: torch.dtype) -> Tensor:
    """A value per channel, whatever torch's defaults for dtype and device are."""
    return torch.tensor(values, dtype=dtype, device="cpu").view(3, 1, 1)


def _bounded(image: Tensor, height: int, width: int) -> Tensor:
    """The middle of an image that is very much longer than the shape it has to cover.

    Covering 336x336 with 20,000x1 pixels would need tens of gigabytes on the way, for a result that
    shows one of these pixels.
    """
    _, old_height, old_width = image.shape
    longest_width = max(1, _LONGEST * old_height * width // height)
    longest_height = max(1, _LONGEST * old_width * height // width)
    top = max(0, (old_height - longest_height) // 2)
    left = max(0, (old_width - longest_width) // 2)
    return image[:, top : top + longest_height, left : left + longest_width]


def _resize(image: Tensor, height: int, width: int) -> Tensor:
    """uint8 [3, h, w] to uint8 [3, height, width]."""
    if image.shape[1:] == (height, width):
        return image
    return interpolate(
        image.unsqueeze(0),
        size=(height, width),
        mode="bilinear",
        antialias=True,
        align_corners=False,
    )[0]


def _cover(old_height: int, old_width: int, height: int, width: int) -> tuple[int, int]:
    """Smallest size of the old aspect ratio that covers the new one, in pixels."""
    if old_height * width <= old_width * height:
        return height, max(width, old_width * height // old_height)
    return max(height, old_height * width // old_width), width


def _contain(old_height: int, old_width: int, height: int, width: int) -> tuple[int, int]:
    """Largest size of the old aspect ratio inside the new one, in pixels."""
    if old_height * width <= old_width * height:
        return max(1, (old_height * width + old_width // 2) // old_width), width
    return height, max(1, (old_width * height + old_height // 2) // old_height)
