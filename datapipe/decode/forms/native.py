"""Images near their own size, cut into patches, as the Qwen2-VL family takes them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from datapipe.array_types import Int64
from datapipe.decode.forms.image_transform import ImageTransform, check_rows
from datapipe.decode.image import Decoded
from datapipe.decode.normalize import Normalizer
from datapipe.decode.spec import ImageSpec
from datapipe.errors import DecodeError
from datapipe.geometry.crop import Draw
from datapipe.geometry.placement import Placement
from datapipe.geometry.sizes import NATIVE_MAX_RATIO, native_size, one


class NativeTransform(ImageTransform):
    """Form with `pixel_values` of [patches, 3 * temporal * patch**2].

    The `merge * merge` patches of one token are a block. Blocks, the patches of a block and the
    values of a patch (channel, frame, row, column) are in the order of
    Qwen2-VL's `Qwen2VLImageProcessor`. `facts` has `image_grid_thw`, int64 [images, 3]: frames, and
    patches down and across, of each image.
    """

    def __init__(self, spec: ImageSpec, normalizer: Normalizer | None = None) -> None:
        super().__init__(spec, normalizer)
        self._patch, self._merge = spec.patch_side, spec.merge

    def rows(self, widths: Int64, heights: Int64) -> Int64:
        across, down = self._grids(widths, heights)
        return across * down

    def tokens(self, widths: Int64, heights: Int64) -> Int64:
        counts: Int64 = self.cells(widths, heights).prod(axis=1)
        return counts

    def cells(self, widths: Int64, heights: Int64) -> Int64:
        across, down = self._grids(widths, heights)
        return np.stack([down // self._merge, across // self._merge], axis=1)

    def sufficient_side(self, aspect: float) -> float:
        return float((self.spec.pixel_limits[1] * aspect) ** 0.5)

    def row_shape(self, widths: Int64, heights: Int64) -> tuple[int, ...]:
        return (3 * self.spec.temporal * self._patch**2,)

    def facts(self, widths: Int64, heights: Int64) -> dict[str, Tensor]:
        across, down = self._grids(widths, heights)
        grids = np.stack([np.ones_like(down), down, across], axis=1)
        return {"image_grid_thw": torch.from_numpy(grids)}

    def common(self) -> dict[str, object]:
        # Rows may be as long with other patches, which are other pixels to a model.
        sides = {"patch": self._patch, "merge": self._merge, "temporal": self.spec.temporal}
        return super().common() | sides

    def pictures(self, values: Tensor, width: int, height: int) -> Tensor:
        patch, merge = self._patch, self._merge
        down, across = (side // patch for side in self._target(height, width))
        blocks = values.view(
            *(down // merge, across // merge, merge, merge), *(3, self.spec.temporal, patch, patch)
        )
        first = blocks[:, :, :, :, :, 0].permute(4, 0, 2, 5, 1, 3, 6)
        return first.reshape(1, 3, down * patch, across * patch)

    def place(self, image: Decoded, out: Tensor, draw: Draw | None = None) -> Placement:
        _check_ratio(image)
        patch, merge, frames = self._patch, self._merge, self.spec.temporal
        height, width = self._target(image.height, image.width)
        down, across = height // patch, width // patch
        check_rows(image, out, (down * across, 3 * frames * patch * patch))
        fitted, placement = self._fit(image, height, width)
        blocks = out.view(
            *(down // merge, across // merge, merge, merge),  # blocks, and patches in a block
            *(3, frames, patch, patch),
        )
        # One row of blocks at a time, whose values stay in the cache until they are put in order:
        # less than half the time that the whole image takes at once.
        band = torch.empty(3, merge * patch, width, dtype=self.dtype, device="cpu")
        values = band.view(3, merge, patch, across // merge, merge, patch)
        ordered = values.permute(3, 1, 4, 0, 2, 5).unsqueeze(4).expand(blocks.shape[1:])
        for row, top in enumerate(range(0, height, merge * patch)):
            self._normalizer.write(fitted[:, top : top + merge * patch], band)
            blocks[row] = ordered
        return placement

    def _grids(self, widths: Int64, heights: Int64) -> tuple[Int64, Int64]:
        """Return the patches across and down each image."""
        least, most = self.spec.pixel_limits
        across, down = native_size(
            widths,
            heights,
            multiple_of=self._patch * self._merge,
            min_pixels=least,
            max_pixels=most,
            least_side=self.spec.least_side,
        )
        return across // self._patch, down // self._patch

    def _target(self, height: int, width: int) -> tuple[int, int]:
        across, down = self._grids(*one(width, height))
        return int(down[0]) * self._patch, int(across[0]) * self._patch


def _check_ratio(image: Decoded) -> None:
    """Raise `DecodeError` for a ratio of sides that Qwen2-VL's image processor refuses."""
    ratio = max(image.width, image.height) / min(image.width, image.height)
    if ratio > NATIVE_MAX_RATIO:
        raise DecodeError(
            f"it has {image.width}x{image.height} pixels, an aspect ratio of {ratio:,.6g}, and the "
            f"image processors of the Qwen2-VL family take at most {NATIVE_MAX_RATIO}; leave it "
            f'out with where="images == 0 or {1 / NATIVE_MAX_RATIO} <= aspect <= '
            f'{NATIVE_MAX_RATIO}", or give on_error="skip"'
        )
