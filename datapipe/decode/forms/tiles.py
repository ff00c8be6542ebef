"""Images cut into square tiles, by the rules of InternVL, Llama 4, Idefics 3 and LLaVA-NeXT."""

from __future__ import annotations

from abc import ABC
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from datapipe.array_types import Int64, UInt8
from datapipe.decode.forms.image_transform import ImageTransform, check_rows
from datapipe.decode.image import Decoded
from datapipe.decode.normalize import Values
from datapipe.decode.resize import resize
from datapipe.decode.spec import ImageSpec
from datapipe.geometry import tiles as rules
from datapipe.geometry.crop import Draw, Placement
from datapipe.geometry.sizes import one

_AT_ONCE = 1 << 24  # pixels of a padded image that are resized at once
_USUAL_TILES = 4  # of the largest grid, in models of the LLaVA-NeXT family


class _Tiles(ImageTransform, ABC):
    """Form with `pixel_values` of [tiles, 3, size, size]."""

    def __init__(self, spec: ImageSpec) -> None:
        super().__init__(spec)
        self._side = spec.height
        self._row = 3, self._side, self._side

    def sufficient_side(self, aspect: float) -> float:
        most = _USUAL_TILES if self.spec.grids is not None else self.spec.most_tiles
        return self._side * float((most * aspect) ** 0.5)

    def facts(self, widths: Int64, heights: Int64) -> dict[str, Tensor]:
        if self.spec.grids is None:
            return {}
        return {"image_sizes": torch.from_numpy(np.stack([heights, widths], axis=1))}

    def _whole(self, image: Decoded, out: Values) -> None:
        """Write the whole image, stretched to a tile."""
        self._normalizer.write(self._fit(image, self._side, self._side)[0], out)

    def _cut(self, canvas: UInt8, out: Values) -> None:
        """Write the tiles of a canvas, row by row."""
        side = self._side
        across = canvas.shape[1] // side
        for number, tile in enumerate(out):
            top, left = number // across * side, number % across * side
            self._normalizer.write(canvas[top : top + side, left : left + side], tile)


class TilesTransform(_Tiles):
    """Tiles by the rule of InternVL or of Command A Vision.

    They are those of the image, stretched, row by row, and then the thumbnail.
    """

    def rows(self, widths: Int64, heights: Int64) -> Int64:
        tiles: Int64 = self.cells(widths, heights).prod(axis=1)
        return tiles + (tiles > 1) if self.spec.thumbnail else tiles

    def tokens(self, widths: Int64, heights: Int64) -> Int64:
        return self.rows(widths, heights) * self.cell_tokens

    def cells(self, widths: Int64, heights: Int64) -> Int64:
        rule = rules.tile_grid if self.spec.tiles_by == "aspect" else rules.scale_grid
        across, down = rule(widths, heights, tile=self._side, max_tiles=self.spec.most_tiles)
        return np.stack([down, across], axis=1)

    def columns(self, width: int, height: int) -> int:
        return int(self.cells(*one(width, height))[0, 1])

    @property
    def cell_tokens(self) -> int:
        return self._patch_tokens(self._side, self._side)

    @property
    def adds_whole(self) -> bool:
        return self.spec.thumbnail

    def place(self, image: Decoded, out: Values, draw: Draw | None = None) -> Placement:
        side = self._side
        height, width = self._target(image.height, image.width)
        tiles = (height // side) * (width // side)
        thumbnail = self.spec.thumbnail and tiles > 1
        check_rows(image, out, (tiles + thumbnail, *self._row))
        canvas, placement = self._canvas(image, height, width)
        self._cut(canvas, out[:tiles])
        if thumbnail:
            self._thumbnail(image, canvas, out[tiles])
        return placement

    def _canvas(self, image: Decoded, height: int, width: int) -> tuple[UInt8, Placement]:
        return self._fit(image, height, width)

    def _thumbnail(self, image: Decoded, canvas: UInt8, out: Values) -> None:
        self._whole(image, out)

    def _target(self, height: int, width: int) -> tuple[int, int]:
        down, across = self.cells(*one(width, height))[0].tolist()
        return down * self._side, across * self._side


class CornerTilesTransform(TilesTransform):
    """Tiles by the rule of Llama 4, likewise: of the image in the corner of a canvas."""

    def cells(self, widths: Int64, heights: Int64) -> Int64:
        most = self.spec.most_tiles
        across, down = rules.scale_grid(
            widths, heights, tile=self._side, max_tiles=most, single=True
        )
        return np.stack([down, across], axis=1)

    def _canvas(self, image: Decoded, height: int, width: int) -> tuple[UInt8, Placement]:
        size = rules.fit_tiles(image.width, image.height, canvas=(height, width), tile=self._side)
        fitted, placement = self._fit(image, *size)
        canvas = np.empty((height, width, 3), np.uint8)
        canvas[...] = np.array(self.spec.fill, np.uint8)
        canvas[: size[0], : size[1]] = fitted
        return canvas, placement


class ScaledTilesTransform(TilesTransform):
    """Tiles by the rule of Idefics 3, likewise.

    An image is scaled to its longer side before it is stretched to whole tiles; the thumbnail is
    made of the canvas. Models take [1, tiles, 3, size, size].
    """

    nested = True

    def __init__(self, spec: ImageSpec) -> None:
        assert spec.longest is not None
        super().__init__(spec)
        self._longest = spec.longest

    def cells(self, widths: Int64, heights: Int64) -> Int64:
        across, down = rules.scaled_grid(widths, heights, longest=self._longest, tile=self._side)
        return np.stack([down, across], axis=1)

    def sufficient_side(self, aspect: float) -> float:
        return float(self._longest)

    def _canvas(self, image: Decoded, height: int, width: int) -> tuple[UInt8, Placement]:
        across, down = rules.scaled_size(*one(image.width, image.height), longest=self._longest)
        scaled, _ = self._fit(image, int(down[0]), int(across[0]))
        placement = Placement(width / image.width, height / image.height)
        return resize(scaled, height, width, self.spec.interpolation), placement

    def _thumbnail(self, image: Decoded, canvas: UInt8, out: Values) -> None:
        side = self._side
        self._normalizer.write(resize(canvas, side, side, self.spec.interpolation), out)


class AnyresTransform(_Tiles):
    """Tiles by LLaVA-NeXT's rule.

    The first tile is the whole image, stretched. The others are those of the canvas into whose
    middle it was fitted, row by row. `facts` has `image_sizes`, int64 [images, 2]: height and width
    of the originals, from which a model works out the padding that it drops.
    """

    def __init__(self, spec: ImageSpec) -> None:
        assert spec.grids is not None
        super().__init__(spec)
        self._grids = spec.grids
        self._fill = np.array(spec.fill_color, np.uint8)

    @cached_property
    def of_several(self) -> ImageTransform | None:
        return None if self.spec.pad_several is None else SquareTransform(self.spec)

    def rows(self, widths: Int64, heights: Int64) -> Int64:
        return rules.anyres_tiles(widths, heights, grids=self._grids, tile=self._side)

    def tokens(self, widths: Int64, heights: Int64) -> Int64:
        self._patch_tokens(self._side, self._side)  # raises if the patch is not given
        return rules.anyres_tokens(
            widths,
            heights,
            grids=self._grids,
            tile=self._side,
            patch=self.spec.patch_side * self.spec.merge,
            most=self.spec.anyres_max,
        )

    def pictures(self, values: Tensor, width: int, height: int) -> Tensor:
        return values.roll(-1, 0)

    def columns(self, width: int, height: int) -> int:
        return self._canvas(height, width)[1] // self._side

    def place(self, image: Decoded, out: Values, draw: Draw | None = None) -> Placement:
        side = self._side
        height, width = self._canvas(image.height, image.width)
        tiles = (height // side) * (width // side)
        check_rows(image, out, (1 + tiles, *self._row))
        self._whole(image, out[0])
        new_height, new_width = rules.fit_grid(image.width, image.height, canvas=(height, width))
        top, left = (height - new_height) // 2, (width - new_width) // 2
        canvas, placement = self._fit(image, new_height, new_width)
        if (new_height, new_width) != (height, width):
            fitted, canvas = canvas, np.empty((height, width, 3), np.uint8)
            canvas[...] = self._fill
            canvas[top : top + new_height, left : left + new_width] = fitted
        self._cut(canvas, out[1:])
        return placement.shifted(left, top)

    def _canvas(self, height: int, width: int) -> tuple[int, int]:
        across, down = rules.best_grid(*one(width, height), grids=self._grids)
        return int(down[0]), int(across[0])

    def _target(self, height: int, width: int) -> tuple[int, int]:
        fitted = rules.fit_grid(width, height, canvas=self._canvas(height, width))
        # The tile that shows the whole may be longer than the fitted image along the shorter side.
        return max(fitted[0], self._side), max(fitted[1], self._side)


class SquareTransform(_Tiles):
    """One tile of each image, by LLaVA-OneVision's rule for several images of a sample.

    The original is padded to a square and then resized. Models add one token (`image_newline`).
    `facts` are those of `AnyresTransform`.
    """

    def __init__(self, spec: ImageSpec) -> None:
        assert spec.pad_several is not None
        super().__init__(spec)
        self._fill = np.array(spec.pad_several, np.uint8)

    def tokens(self, widths: Int64, heights: Int64) -> Int64:
        return np.full(len(widths), self._patch_tokens(self._side, self._side) + 1, np.int64)

    def place(self, image: Decoded, out: Values, draw: Draw | None = None) -> Placement:
        check_rows(image, out, (1, *self._row))
        side, interpolation = self._side, self.spec.interpolation
        height, width, _ = image.pixels.shape
        longer = max(height, width)
        top, left = (longer - height) // 2, (longer - width) // 2
        # The square of a line would take gigabytes. Each row is resized by itself, so a few are
        # padded at a time; then the same is done to the columns, of which there are few.
        narrow = np.empty((longer, side, 3), np.uint8)
        narrow[...] = self._fill
        step = max(1, _AT_ONCE // longer)
        for start in range(0, height, step):
            rows = image.pixels[start : start + step]
            padded = np.empty((len(rows), longer, 3), np.uint8)
            padded[...] = self._fill
            padded[:, left : left + width] = rows
            begin = top + start
            narrow[begin : begin + len(rows)] = resize(padded, len(rows), side, interpolation)
        self._normalizer.write(resize(narrow, side, side, interpolation), out[0])
        scale = side / longer
        placement = Placement(scale * width / image.width, scale * height / image.height)
        return placement.shifted(left * scale, top * scale)

    def _target(self, height: int, width: int) -> tuple[int, int]:
        longer = max(height, width)
        return max(1, height * self._side // longer), max(1, width * self._side // longer)
