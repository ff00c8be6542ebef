"""Images that keep their shape, in a batch as large as the largest of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from datapipe.array_types import Int64, UInt8
from datapipe.decode.forms.image_transform import ImageTransform, SizedTransform, check_rows
from datapipe.decode.image import Decoded
from datapipe.decode.normalize import Values
from datapipe.decode.spec import ImageSpec
from datapipe.geometry.crop import Draw, Placement
from datapipe.geometry.sizes import bounded_size, shortest


class PaddedTransform(SizedTransform):
    """Form with `pixel_values` of [images, 3, H, W] of the largest, zeros to the right and below.

    `facts` has `image_sizes`, int64 [images, 2]: height and width of each image in it.
    """

    padded = True

    def __init__(self, spec: ImageSpec) -> None:
        super().__init__(spec)
        self._least = self._unit if spec.resize == "dynamic" else spec.height

    def tokens(self, widths: Int64, heights: Int64) -> Int64:
        if self.spec.resize == "dynamic":
            return super().tokens(widths, heights)
        return self._patch_tokens(*self._sizes(widths, heights))

    def cells(self, widths: Int64, heights: Int64) -> Int64:
        if self.spec.resize == "dynamic":
            return super().cells(widths, heights)
        return ImageTransform.cells(self, widths, heights)

    def sufficient_side(self, aspect: float) -> float:
        if self.spec.resize == "shortest":
            return self.spec.height * aspect
        if self.spec.longest is not None:
            return float(self.spec.longest)
        return super().sufficient_side(aspect)

    def row_shape(self, widths: Int64, heights: Int64) -> tuple[int, ...]:
        across, down = self._sizes(widths, heights)
        # A batch without images has the shape of the smallest image, which models can take.
        return 3, int(down.max(initial=self._least)), int(across.max(initial=self._least))

    def values(self, widths: Int64, heights: Int64) -> Int64:
        across, down = self._sizes(widths, heights)
        return 3 * down * across

    def facts(self, widths: Int64, heights: Int64) -> dict[str, Tensor]:
        across, down = self._sizes(widths, heights)
        return {"image_sizes": torch.from_numpy(np.stack([down, across], axis=1))}

    def common(self) -> dict[str, object]:
        rows = {"rows of pixel_values": "[3, H, W] of the largest image"}
        return super().common() | rows | {"side of a token": self._unit}

    def pictures(self, values: Tensor, width: int, height: int) -> Tensor:
        down, across = self._target(height, width)
        return values[:, :, :down, :across]

    def finish(self, values: UInt8, out: Values) -> None:
        _, _, height, width = values.shape
        self._normalizer.write_planes(values, out[:, :, :height, :width])
        _zero_outside(out, height, width)

    def place(self, image: Decoded, out: Values, draw: Draw | None = None) -> Placement:
        height, width = self._target(image.height, image.width)
        if out.ndim != 4 or len(out) != 1 or out.shape[2] < height or out.shape[3] < width:
            check_rows(image, out, (1, 3, height, width))
        fitted, placement = self._fit(image, height, width)
        self._normalizer.write(fitted, out[0, :, :height, :width])
        _zero_outside(out, height, width)
        return placement

    def _sizes(self, widths: Int64, heights: Int64) -> tuple[Int64, Int64]:
        if self.spec.resize == "shortest":
            return shortest(widths, heights, side=self.spec.height)
        if self.spec.longest is not None:
            longest = self.spec.longest
            return bounded_size(widths, heights, multiple_of=self._unit, longest=longest)
        return super()._sizes(widths, heights)


def _zero_outside(out: Values, height: int, width: int) -> None:
    out[0, :, height:] = 0
    out[0, :, :height, width:] = 0
