"""Images that fill a budget of patches, as Gemma 4 takes them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from datapipe.array_types import Int64
from datapipe.decode.forms.image_transform import ImageTransform, check_rows
from datapipe.decode.image import Decoded
from datapipe.decode.normalize import Normalizer
from datapipe.decode.spec import ImageSpec
from datapipe.geometry.budget import budget_size
from datapipe.geometry.crop import Draw
from datapipe.geometry.placement import Placement
from datapipe.geometry.sizes import one


class BudgetTransform(ImageTransform):
    """Form with `pixel_values` of [images, patches, 3 * patch**2], zeros after those of an image.

    Patches are row by row, and the values of a patch in the order row, column, channel: that of
    `Gemma4ImageProcessor`. `facts` has `image_position_ids`, int64 [images, patches, 2]: column and
    row of each patch, -1 where there is none.
    """

    def __init__(self, spec: ImageSpec, normalizer: Normalizer | None = None) -> None:
        super().__init__(spec, normalizer)
        assert spec.tokens is not None
        self._tokens, self._patch, self._merge = spec.tokens, spec.patch_side, spec.merge
        self._patches = spec.tokens * spec.merge**2

    def tokens(self, widths: Int64, heights: Int64) -> Int64:
        counts: Int64 = self.cells(widths, heights).prod(axis=1)
        return counts

    def cells(self, widths: Int64, heights: Int64) -> Int64:
        return self._grids(widths, heights) // self._merge

    def sufficient_side(self, aspect: float) -> float:
        return self._patch * float((self._patches * aspect) ** 0.5)

    def row_shape(self, widths: Int64, heights: Int64) -> tuple[int, ...]:
        return self._patches, 3 * self._patch**2

    def facts(self, widths: Int64, heights: Int64) -> dict[str, Tensor]:
        positions = np.full((len(widths), self._patches, 2), -1, np.int64)
        for image, (down, across) in zip(
            positions, self._grids(widths, heights).tolist(), strict=True
        ):
            grid = np.mgrid[:down, :across][::-1]
            image[: down * across] = grid.reshape(2, -1).T
        return {"image_position_ids": torch.from_numpy(positions)}

    def pictures(self, values: Tensor, width: int, height: int) -> Tensor:
        down, across = self._grids(*one(width, height))[0].tolist()
        side = self._patch
        patches = values[0, : down * across].view(down, across, side, side, 3)
        return patches.permute(4, 0, 2, 1, 3).reshape(1, 3, down * side, across * side)

    def place(self, image: Decoded, out: Tensor, draw: Draw | None = None) -> Placement:
        check_rows(image, out, (1, self._patches, 3 * self._patch**2))
        height, width = self._target(image.height, image.width)
        side, down, across = self._patch, height // self._patch, width // self._patch
        fitted, placement = self._fit(image, height, width)
        # The resized image is interleaved already: a row of a patch is a run of bytes.
        lines = fitted.permute(1, 2, 0).reshape(down, side, across, 3 * side)
        patches = out[0, : down * across]
        patches.view(down, across, side, 3 * side).copy_(lines.transpose(1, 2))
        if self.dtype != torch.uint8:
            patches.mul_(1 / 255)
        out[0, down * across :] = 0
        return placement

    def _grids(self, widths: Int64, heights: Int64) -> Int64:
        """Return the patches down and across each image: int64 [n, 2]."""
        across, down = budget_size(
            widths, heights, tokens=self._tokens, patch=self._patch, merge=self._merge
        )
        return np.stack([down, across], axis=1) // self._patch

    def _target(self, height: int, width: int) -> tuple[int, int]:
        down, across = self._grids(*one(width, height))[0].tolist()
        return down * self._patch, across * self._patch
