"""Images that fill a budget of patches, as Gemma 4 takes them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from datapipe.array_types import Int64
from datapipe.decode.forms.image_transform import SizedTransform, check_rows
from datapipe.decode.image import Decoded
from datapipe.decode.normalize import Values, tensor_of
from datapipe.decode.spec import ImageSpec
from datapipe.geometry.crop import Draw, Placement
from datapipe.geometry.sizes import budget_size


class BudgetTransform(SizedTransform):
    """Form with `pixel_values` of [images, patches, 3 * patch**2], zeros after those of an image.

    Patches are row by row, and the values of a patch in the order row, column, channel: that of
    `Gemma4ImageProcessor`. `facts` has `image_position_ids`, int64 [images, patches, 2]: column and
    row of each patch, -1 where there is none.
    """

    def __init__(self, spec: ImageSpec) -> None:
        super().__init__(spec)
        assert spec.tokens is not None
        self._tokens, self._patch = spec.tokens, spec.patch_side
        self._patches = spec.tokens * spec.merge**2
        self._row = self._patches, 3 * self._patch**2

    def sufficient_side(self, aspect: float) -> float:
        return self._patch * float((self._patches * aspect) ** 0.5)

    def facts(self, widths: Int64, heights: Int64) -> dict[str, Tensor]:
        positions = np.full((len(widths), self._patches, 2), -1, np.int64)
        grids = np.stack(self._sizes(widths, heights), axis=1) // self._patch
        for image, (across, down) in zip(positions, grids.tolist(), strict=True):
            grid = np.mgrid[:down, :across][::-1]
            image[: down * across] = grid.reshape(2, -1).T
        return {"image_position_ids": torch.from_numpy(positions)}

    def pictures(self, values: Tensor, width: int, height: int) -> Tensor:
        side = self._patch
        down, across = (length // side for length in self._target(height, width))
        patches = values[0, : down * across].view(down, across, side, side, 3)
        return patches.permute(4, 0, 2, 1, 3).reshape(1, 3, down * side, across * side)

    def place(self, image: Decoded, out: Values, draw: Draw | None = None) -> Placement:
        check_rows(image, out, (1, *self._row))
        height, width = self._target(image.height, image.width)
        side, down, across = self._patch, height // self._patch, width // self._patch
        fitted, placement = self._fit(image, height, width)
        # The resized image is interleaved already: a row of a patch is a run of bytes.
        lines = torch.from_numpy(fitted.reshape(down, side, across, 3 * side))
        patches = tensor_of(out[0, : down * across], self.dtype)
        patches.view(down, across, side, 3 * side).copy_(lines.transpose(1, 2))
        if self.dtype != torch.uint8:
            patches.mul_(1 / 255)
        out[0, down * across :] = 0
        return placement

    def _sizes(self, widths: Int64, heights: Int64) -> tuple[Int64, Int64]:
        options = {"tokens": self._tokens, "patch": self._patch, "merge": self.spec.merge}
        return budget_size(widths, heights, **options)
