"""Images near their own size, padded to one number of patches, or tiles of it, as LFM2-VL does."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from datapipe.array_types import Bools, Int64, UInt8
from datapipe.decode.forms.image_transform import SizedTransform, check_rows
from datapipe.decode.image import Decoded
from datapipe.decode.normalize import Values
from datapipe.decode.spec import ImageSpec
from datapipe.errors import DecodeError
from datapipe.geometry.crop import Draw, Placement
from datapipe.geometry.sizes import one
from datapipe.geometry.tiles import tile_grid


class NaflexTransform(SizedTransform):
    """Form with `pixel_values` of [rows, patches, 3 * patch**2], zeros after those of a row.

    A row is an image near its own size. A large one is cut into tiles, row by row, and its
    thumbnail is such an image. Patches are row by row, and the values of a patch in the order row,
    column, channel: that of `Lfm2VlImageProcessor`. `facts` describe rows: `pixel_attention_mask`,
    int32 [rows, patches], 1 at patches, and `spatial_shapes`, int64 [rows, 2], patches down and
    across.
    """

    padded = True
    facts_of_rows = True

    def __init__(self, spec: ImageSpec) -> None:
        super().__init__(spec)
        self._patch, self._side = spec.patch_side, spec.height
        self._patches = spec.pixel_limits[1] // self._patch**2
        if spec.most_tiles > 1:
            self._patches = max(self._patches, (self._side // self._patch) ** 2)
        self._row = self._patches, 3 * self._patch**2

    def rows(self, widths: Int64, heights: Int64) -> Int64:
        tiles, whole = self._parts(widths, heights)
        return tiles + whole

    def tokens(self, widths: Int64, heights: Int64) -> Int64:
        tiles, whole = self._parts(widths, heights)
        return tiles * self.cell_tokens + whole * self.cells(widths, heights)[:, 2]

    def cells(self, widths: Int64, heights: Int64) -> Int64:
        """Return rows and columns of tiles, and tokens of the image or its thumbnail: [n, 3]."""
        own = super().cells(widths, heights).prod(axis=1)
        return np.column_stack([self._grids(widths, heights), own])

    @property
    def cell_tokens(self) -> int:
        return (self._side // self._unit) ** 2

    @property
    def adds_whole(self) -> bool:
        return self.spec.thumbnail

    def sufficient_side(self, aspect: float) -> float:
        if (tiles := self.spec.most_tiles) == 1:
            return super().sufficient_side(aspect)
        return self._side * float((tiles * aspect) ** 0.5)

    def facts(self, widths: Int64, heights: Int64) -> dict[str, Tensor]:
        shapes = self._shapes(widths, heights)
        mask = np.arange(self._patches) < shapes.prod(axis=1)[:, None]
        return {
            "pixel_attention_mask": torch.from_numpy(mask.astype(np.int32)),
            "spatial_shapes": torch.from_numpy(shapes),
        }

    def pictures(self, values: Tensor, width: int, height: int) -> Tensor:
        side, shown = self._patch, []
        for row, (down, across) in zip(values, self._shapes(*one(width, height)), strict=True):
            patches = row[: down * across].view(down, across, side, side, 3)
            pixels = patches.permute(4, 0, 2, 1, 3).reshape(1, 3, down * side, across * side)
            # A thumbnail is shown as large as a tile.
            shown.append(pixels if len(values) == 1 else interpolate(pixels, (self._side,) * 2))
        return torch.cat(shown)

    def columns(self, width: int, height: int) -> int:
        return int(self._grids(*one(width, height))[0, 1])

    def place(self, image: Decoded, out: Values, draw: Draw | None = None) -> Placement:
        size = one(image.width, image.height)
        (tiles,), (whole,) = self._parts(*size)
        if whole:
            self._check_line(image)
        check_rows(image, out, (tiles + whole, *self._row))
        placed = []
        if tiles:
            down, across = self._grids(*size)[0].tolist()
            canvas, placement = self._fit(image, down * self._side, across * self._side)
            placed.append(placement)
            cut = canvas.reshape(down, self._side, across, self._side, 3).swapaxes(1, 2)
            for tile, row in zip(cut.reshape(tiles, self._side, self._side, 3), out, strict=False):
                self._write(tile, row)
        if whole:
            across, down = (int(side[0]) for side in self._sizes(*size))
            fitted, placement = self._fit(image, down, across)
            placed.append(placement)
            self._write(fitted, out[-1])
        return placed[0]

    def _write(self, pixels: UInt8, row: Values) -> None:
        side, (height, width, _) = self._patch, pixels.shape
        down, across = height // side, width // side
        patches = pixels.reshape(down, side, across, 3 * side).swapaxes(1, 2)
        # All channels have one mean and std, so it does not matter which value is whose.
        shape = (down * across, 3, side**2)
        self._normalizer.write_planes(patches.reshape(shape), row[: shape[0]].reshape(shape))
        row[shape[0] :] = 0

    def _check_line(self, image: Decoded) -> None:
        across, down = self._near(*one(image.width, image.height), least=self._unit)
        if (count := int(across[0] * down[0]) // self._patch**2) > self._patches:
            most = self.spec.pixel_limits[1] // self._unit**2
            raise DecodeError(
                f"it has {image.width}x{image.height} pixels, which become {count:,} patches, and "
                f"resize='naflex' has room for {self._patches:,}; leave it out with "
                f'where="images == 0 or {1 / most} <= aspect <= {most}", or give on_error="skip"'
            )

    def _sizes(self, widths: Int64, heights: Int64) -> tuple[Int64, Int64]:
        # A line too long for the model is cut short, so that it can be planned.
        across, down = self._near(widths, heights, least=self._unit)
        most, unit = self._patches * self._patch**2, self._unit
        across = np.minimum(across, np.maximum(most // down // unit, 1) * unit)
        return across, np.minimum(down, most // across // unit * unit)

    def _grids(self, widths: Int64, heights: Int64) -> Int64:
        """Return rows and columns of tiles, [n, 2]; 1 and 1 of an image that is not cut.

        Those over twice `max_pixels` are. This is `Lfm2VlImageProcessor.resize_and_split`.
        """
        unit, most = self._unit, self.spec.most_tiles
        near = (np.rint(side / unit) * unit for side in (widths, heights))
        wide, high = (np.maximum(side, self._patch) for side in near)
        cut = (wide * high > 2 * self.spec.pixel_limits[1]) & (most > 1)
        across, down = tile_grid(
            widths[cut], heights[cut], tile=self._side, max_tiles=most, least=2
        )
        grids = np.ones((len(cut), 2), np.int64)
        grids[cut] = np.column_stack([down, across])
        return grids

    def _parts(self, widths: Int64, heights: Int64) -> tuple[Int64, Bools]:
        """Return the tiles of each image, and whether it is a row itself: [n] each."""
        tiles: Int64 = self._grids(widths, heights).prod(axis=1)
        return np.where(tiles > 1, tiles, 0), (tiles == 1) | self.spec.thumbnail

    def _shapes(self, widths: Int64, heights: Int64) -> Int64:
        """Return patches down and across of each row: int64 [rows, 2]."""
        tiles, whole = self._parts(widths, heights)
        ends = np.cumsum(tiles + whole)
        shapes = np.full((ends[-1] if len(ends) else 0, 2), self._side // self._patch, np.int64)
        across, down = self._sizes(widths[whole], heights[whole])
        shapes[ends[whole] - 1] = np.column_stack([down, across]) // self._patch
        return shapes

    def _target(self, height: int, width: int) -> tuple[int, int]:
        down, across = (self._grids(*one(width, height))[0] * self._side).tolist()
        whole = super()._target(height, width)
        if down * across == self._side**2:
            return whole
        return max(whole[0], down), max(whole[1], across)
