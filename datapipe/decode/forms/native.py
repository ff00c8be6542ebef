"""Images near their own size, cut into patches, as the Qwen2-VL family takes them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from datapipe.array_types import Int64
from datapipe.decode.forms.image_transform import SizedTransform, check_rows
from datapipe.decode.image import Decoded
from datapipe.decode.normalize import Values, array_of, tensor_of
from datapipe.decode.spec import ImageSpec
from datapipe.errors import DecodeError
from datapipe.geometry.crop import Draw, Placement
from datapipe.geometry.sizes import NATIVE_MAX_RATIO


class NativeTransform(SizedTransform):
    """Form with `pixel_values` of [patches, 3 * temporal * patch**2].

    The `merge * merge` patches of one token are a block. Blocks, the patches of a block and the
    values of a patch (channel, frame, row, column) are in the order of
    Qwen2-VL's `Qwen2VLImageProcessor`. By rows, they are [patches, 3, patch, patch] without blocks,
    as of `PaddleOCRVLImageProcessor`. `facts` has `image_grid_thw`, int64 [images, 3]: frames, and
    patches down and across, of each image.
    """

    def __init__(self, spec: ImageSpec) -> None:
        super().__init__(spec)
        self._patch, by_rows = spec.patch_side, spec.patch_order == "rows"
        self._merge = 1 if by_rows else spec.merge  # patches along a block
        self._row = (3 * spec.temporal * self._patch**2,)
        if by_rows:
            self._row = 3, self._patch, self._patch

    def rows(self, widths: Int64, heights: Int64) -> Int64:
        return self.tokens(widths, heights) * self.spec.merge**2

    def facts(self, widths: Int64, heights: Int64) -> dict[str, Tensor]:
        facts = {"image_grid_thw": self._grids(widths, heights, 1)}
        if self.spec.merge_sizes:
            sizes = np.full(len(widths), self.spec.merge, np.int64)
            facts["image_merge_sizes"] = torch.from_numpy(sizes)
        return facts

    def _sizes(self, widths: Int64, heights: Int64) -> tuple[Int64, Int64]:
        spec = self.spec
        by_rows = spec.patch_order == "rows"
        return self._near(widths, heights, least_side=spec.least_side, whole_pixels=by_rows)

    def _grids(self, widths: Int64, heights: Int64, frames: int) -> Tensor:
        across, down = (side // self._patch for side in self._sizes(widths, heights))
        return torch.from_numpy(np.stack([np.full_like(down, frames), down, across], axis=1))

    def common(self) -> dict[str, object]:
        # Rows may be as long with other patches, which are other pixels to a model.
        sides = {"patch": self._patch, "merge": self.spec.merge, "temporal": self.spec.temporal}
        return super().common() | sides

    def pictures(self, values: Tensor, width: int, height: int) -> Tensor:
        patch, merge = self._patch, self._merge
        down, across = (side // patch for side in self._target(height, width))
        blocks = values.view(
            *(down // merge, across // merge, merge, merge), *(3, -1, patch, patch)
        )
        first = blocks[:, :, :, :, :, 0].permute(4, 0, 2, 5, 1, 3, 6)
        return first.reshape(1, 3, down * patch, across * patch)

    def place(self, image: Decoded, out: Values, draw: Draw | None = None) -> Placement:
        frames, values = self.spec.temporal, self._patch**2
        self._check(image, out, *self._row)
        return self._write(image, out.reshape(len(out), 3, frames, values))

    def _check(self, image: Decoded, out: Values, *row: int) -> None:
        """Refuse a ratio that Qwen2-VL's image processor refuses, or rows for another size."""
        ratio = max(image.width, image.height) / min(image.width, image.height)
        if ratio > NATIVE_MAX_RATIO:
            raise DecodeError(
                f"it has {image.width}x{image.height} pixels, an aspect ratio of {ratio:,.6g}, and "
                f"the image processors of the Qwen2-VL family take at most {NATIVE_MAX_RATIO}; "
                f'leave it out with where="images == 0 or {1 / NATIVE_MAX_RATIO} <= aspect <= '
                f'{NATIVE_MAX_RATIO}", or give on_error="skip"'
            )
        height, width = self._target(image.height, image.width)
        check_rows(image, out, (height * width // self._patch**2, *row))

    def _write(self, image: Decoded, out: Values) -> Placement:
        """Fill the rows of an image, [rows, 3, frames, patch**2], the same in all frames."""
        patch, merge, frames = self._patch, self._merge, out.shape[2]
        height, width = self._target(image.height, image.width)
        down, across = height // patch, width // patch
        fitted, placement = self._fit(image, height, width)
        blocks = tensor_of(out, self.dtype).view(
            *(down // merge, across // merge, merge, merge),  # blocks, and patches in a block
            *(3, frames, patch, patch),
        )
        # One row of blocks at a time, whose values stay in the cache until they are put in order:
        # less than half the time that the whole image takes at once.
        band = torch.empty(3, merge * patch, width, dtype=self.dtype, device="cpu")
        lines, values = array_of(band), band.view(3, merge, patch, across // merge, merge, patch)
        ordered = values.permute(3, 1, 4, 0, 2, 5).unsqueeze(4).expand(blocks.shape[1:])
        for row, top in enumerate(range(0, height, merge * patch)):
            self._normalizer.write(fitted[top : top + merge * patch], lines)
            blocks[row] = ordered
        return placement
