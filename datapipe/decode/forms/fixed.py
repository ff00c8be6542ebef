"""Images of one size: stretched, padded or cropped."""

from __future__ import annotations

import math

import numpy as np
import torch

from datapipe.array_types import Int64
from datapipe.decode.forms.image_transform import ImageTransform, check_rows
from datapipe.decode.image import Decoded
from datapipe.decode.normalize import Values
from datapipe.decode.spec import ImageSpec
from datapipe.geometry.crop import Box, Draw, Placement, least_box, middle_box, random_box
from datapipe.geometry.sizes import contain, cover


class FixedTransform(ImageTransform):
    """Form with `pixel_values` of [images, 3, height, width]."""

    def __init__(self, spec: ImageSpec) -> None:
        super().__init__(spec)
        self._row = 3, spec.height, spec.width
        self._size = spec.height, spec.width
        self._border = np.empty((3, 1, 1), self._normalizer.stored)
        self._normalizer.write(np.array([[spec.fill_color]], np.uint8), self._border)

    def tokens(self, widths: Int64, heights: Int64) -> Int64:
        return np.full(len(widths), self._patch_tokens(self.spec.width, self.spec.height), np.int64)

    def sufficient_side(self, aspect: float) -> float:
        spec = self.spec
        if spec.resize == "pad":
            return float(max(self._size))
        side = max(*self._size, spec.crop_from or 0) * aspect
        # The smallest part is shown at full size.
        return side if spec.random_crop is None else side / spec.random_crop[0] ** 0.5

    def own_shape(self, width: int, height: int) -> tuple[int, ...]:
        return 1, *self._row

    def place(self, image: Decoded, out: Values, draw: Draw | None = None) -> Placement:
        check_rows(image, out, (1, *self._row))
        height, width = self._size
        box, down, across = resized_part(self.spec, image.width, image.height, draw)
        if box is None:
            fitted, placement = self._fit(image, down, across)
        else:
            fitted, placement = self._fit_part(image, box, down, across)
        if self.spec.resize == "pad":
            top, left = (height - down) // 2, (width - across) // 2
            bottom, right = top + down, left + across
            out[0, :, :top] = self._border
            out[0, :, bottom:] = self._border
            out[0, :, top:bottom, :left] = self._border
            out[0, :, top:bottom, right:] = self._border
            self._normalizer.write(fitted, out[0, :, top:bottom, left:right])
            return placement.shifted(left, top)
        if (down, across) != self._size:
            top, left = (down - height) // 2, (across - width) // 2
            fitted = fitted[top : top + height, left : left + width]
            placement = placement.shifted(-left, -top)
        if draw is not None and draw.mirrors(self.spec.flip):
            # By torch, which takes half as long as NumPy.
            fitted = torch.from_numpy(fitted.transpose(2, 0, 1)).flip(2).numpy().transpose(1, 2, 0)
            placement = placement.mirrored(width)
        self._normalizer.write(fitted, out[0])
        return placement

    def _target(self, height: int, width: int) -> tuple[int, int]:
        if self.spec.random_crop is not None:
            # The part is not known yet: the smallest possible one has to have enough pixels.
            least_height, least_width = least_box(width, height, self.spec.random_crop[0])
            down, across = self._size[0] / least_height, self._size[1] / least_width
            return math.ceil(height * down), math.ceil(width * across)
        if self.spec.resize == "crop":
            return cover(width, height, inner=_inner(self.spec))
        if self.spec.resize == "pad":
            return contain(width, height, outer=self._size)
        return self._size


def resized_part(
    spec: ImageSpec, width: int, height: int, draw: Draw | None
) -> tuple[Box | None, int, int]:
    """Return the part of an upright image that is resized, and its new height and width.

    The part is None for the whole image. The middle of a result that is larger than the output is
    cut out; a smaller one is in the middle of the padding.
    """
    if draw is not None and spec.random_crop is not None:
        return random_box(width, height, spec.random_crop, draw), spec.height, spec.width
    if spec.resize == "crop":
        middle = middle_box(width, height, inner=_inner(spec))
        return middle, *cover(middle.width, middle.height, inner=_inner(spec))
    if spec.resize == "pad":
        return None, *contain(width, height, outer=(spec.height, spec.width))
    return None, spec.height, spec.width


def _inner(spec: ImageSpec) -> tuple[int, int]:
    """Return the size that "crop" covers before the centre is cut out."""
    return spec.crop_from or spec.height, spec.crop_from or spec.width
