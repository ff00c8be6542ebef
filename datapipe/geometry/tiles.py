"""Images cut into square tiles: the grids of InternVL, Command A Vision, Idefics 3 and LLaVA-NeXT.

Functions take the widths and heights of n images, in pixels, and compute in the floating-point
steps of their sources, so that equal sizes come out. `PlanError` if a size is not above 0.

For LLaVA-NeXT the canvas that keeps most of an image's pixels is chosen; the image is fitted into
its middle and the rest stays black. The sources are transformers' `select_best_resolution` and
`get_patch_output_size` (`image_processing_utils.py`), and of the tokens
`LlavaNextProcessor._get_number_of_features`. LLaVA-OneVision chooses in the same way.
"""

from __future__ import annotations

import numpy as np

from datapipe.array_types import Int64, Integers
from datapipe.geometry.sizes import check_sizes

Grids = tuple[tuple[int, int], ...]
"""Canvases, (height, width) each, multiples of a tile's side."""

_LARGEST = 4096
"""Longer side of Idefics 3 at most: `MAX_IMAGE_SIZE` of its image processor."""


def tile_grid(
    widths: Integers, heights: Integers, *, tile: int, max_tiles: int, least: int = 1
) -> tuple[Int64, Int64]:
    """Return the tiles along width and height of each image: int64 [n] each.

    The grid of at least `least` tiles whose aspect ratio is closest to the image's; of several
    equally close ones the largest that the image covers by more than half. This is
    `dynamic_preprocess` of InternVL 1.5 and later, and with two tiles or more that of LFM2-VL.
    """
    check_sizes(widths, heights)
    ratio = widths / heights
    area = widths.astype(np.int64) * heights
    closest = np.full(len(widths), np.inf)
    across = np.ones(len(widths), np.int64)
    down = np.ones(len(widths), np.int64)
    for columns, rows in _grids(max_tiles):
        if columns * rows < least:
            continue
        distance = np.abs(ratio - columns / rows)
        better = distance < closest
        better |= (distance == closest) & (area > 0.5 * tile * tile * columns * rows)
        closest[better] = distance[better]
        across[better] = columns
        down[better] = rows
    return across, down


def scale_grid(
    widths: Integers, heights: Integers, *, tile: int, max_tiles: int, single: bool = False
) -> tuple[Int64, Int64]:
    """Return the tiles along width and height of each image: int64 [n] each.

    The grid that enlarges the image least, or else shrinks it least, without changing its aspect
    ratio; of equal ones the smallest. This is `get_optimal_tiled_canvas` of transformers'
    `image_processing_cohere2_vision.py`, and with `single` precision `get_best_fit` of
    `image_processing_llama4.py`.
    """
    check_sizes(widths, heights)
    if single:
        widths, heights = widths.astype(np.float32), heights.astype(np.float32)
    best = np.zeros(len(widths))
    across = np.ones(len(widths), np.int64)
    down = np.ones(len(widths), np.int64)
    for columns, rows in _grids(max_tiles):
        scale = np.minimum(columns * tile / widths, rows * tile / heights)
        better = np.where(scale >= 1, (best < 1) | (scale < best), scale > best)
        best[better] = scale[better]
        across[better] = columns
        down[better] = rows
    return across, down


def fit_tiles(width: int, height: int, *, canvas: tuple[int, int], tile: int) -> tuple[int, int]:
    """Return (height, width) of an image in a corner of its canvas, the shorter side rounded down.

    No side is enlarged beyond one tile. In the same floating-point steps as `_preprocess` of
    `image_processing_llama4.py`: a side that its canvas limits is computed in single precision.
    """
    most_down, most_across = (
        min(max(side, tile), most) for side, most in zip((height, width), canvas, strict=True)
    )
    down = _scale(height, most_down, single=max(height, tile) > canvas[0])
    across = _scale(width, most_across, single=max(width, tile) > canvas[1])
    as_compared = float if type(down) is type(across) is float else np.float32
    if as_compared(across) < as_compared(down):
        return max(min(int(type(across)(height) * across), most_down), 1), most_across
    return most_down, max(min(int(type(down)(width) * down), most_across), 1)


def _scale(side: int, wanted: int, *, single: bool) -> float | np.float32:
    return np.float32(wanted) / np.float32(side) if single else wanted / side


def per_tile(widths: Integers, heights: Integers) -> Int64:
    """Return the tokens of images cut into square tiles, as in InternVL: int64 [n].

    At most 12 tiles of 448 pixels have 256 tokens each. An image of several has one more tile,
    which shows the whole of it.
    """
    across, down = tile_grid(widths, heights, tile=448, max_tiles=12)
    tiles = across * down
    return (tiles + (tiles > 1)) * 256


def _grids(max_tiles: int) -> list[tuple[int, int]]:
    """Return grids of up to `max_tiles` tiles, those of fewer tiles first."""
    sides = range(1, max_tiles + 1)
    grids = [(columns, rows) for columns in sides for rows in sides if columns * rows <= max_tiles]
    return sorted(grids, key=lambda grid: grid[0] * grid[1])


def scaled_size(widths: Integers, heights: Integers, *, longest: int) -> tuple[Int64, Int64]:
    """Return sizes with a longer side of `longest`, the shorter one even: (widths, heights).

    This is `get_resize_output_image_size` of transformers' `image_processing_idefics3.py`.
    """
    check_sizes(widths, heights)
    wide, aspect = widths >= heights, widths / heights
    shorter = np.where(wide, longest / aspect, longest * aspect).astype(np.int64)
    shorter = np.maximum(shorter + shorter % 2, 1)
    across, down = np.where(wide, longest, shorter), np.where(wide, shorter, longest)
    if longest <= _LARGEST:
        return across, down
    wide, aspect = across >= down, across / down
    shorter = np.where(wide, _LARGEST / aspect, _LARGEST * aspect).astype(np.int64)
    shorter = np.maximum(shorter, 1)
    return np.where(wide, _LARGEST, shorter), np.where(wide, shorter, _LARGEST)


def scaled_grid(
    widths: Integers, heights: Integers, *, longest: int, tile: int
) -> tuple[Int64, Int64]:
    """Return the tiles along width and height of each scaled image: int64 [n] each.

    The longer side is rounded up to whole tiles, then the shorter one, which keeps the aspect ratio
    of before: `resize_for_vision_encoder` of transformers' `image_processing_idefics3.py`.
    """
    across, down = scaled_size(widths, heights, longest=longest)
    aspect = across / down
    wide = across >= down
    columns, rows = -(-across // tile), -(-down // tile)
    from_width = -(-(columns * tile / aspect).astype(np.int64) // tile)
    from_height = -(-(rows * tile * aspect).astype(np.int64) // tile)
    return np.where(wide, columns, from_height), np.where(wide, from_width, rows)


def best_grid(widths: Integers, heights: Integers, *, grids: Grids) -> tuple[Int64, Int64]:
    """Return the canvas of each image: (widths, heights), int64 [n] each.

    The one that keeps most of the image's pixels; of equals the one that wastes least, then the
    first. `PlanError` if a size is not above 0.
    """
    check_sizes(widths, heights)
    area = widths.astype(np.int64) * heights
    most_kept = np.zeros(len(widths), np.int64)
    least_waste = np.full(len(widths), np.iinfo(np.int64).max)
    across, down = np.zeros(len(widths), np.int64), np.zeros(len(widths), np.int64)
    for height, width in grids:
        scale = np.minimum(width / widths, height / heights)
        kept = (widths * scale).astype(np.int64) * (heights * scale).astype(np.int64)
        kept = np.minimum(kept, area)
        waste = width * height - kept
        better = (kept > most_kept) | ((kept == most_kept) & (waste < least_waste))
        most_kept[better] = kept[better]
        least_waste[better] = waste[better]
        across[better] = width
        down[better] = height
    return across, down


def fit_grid(width: int, height: int, *, canvas: tuple[int, int]) -> tuple[int, int]:
    """Return (height, width) of an image inside its canvas, the shorter side rounded up.

    In the same floating-point steps as `get_patch_output_size`, whose rounding up may add a pixel.
    """
    canvas_height, canvas_width = canvas
    scale_width, scale_height = canvas_width / width, canvas_height / height
    if scale_width < scale_height:
        return min(int(np.ceil(height * scale_width)), canvas_height), canvas_width
    return canvas_height, min(int(np.ceil(width * scale_height)), canvas_width)


def anyres_tiles(widths: Integers, heights: Integers, *, grids: Grids, tile: int) -> Int64:
    """Return the tiles of each image, int64 [n], including the one that shows the whole."""
    across, down = best_grid(widths, heights, grids=grids)
    return 1 + (across // tile) * (down // tile)


def anyres_tokens(
    widths: Integers,
    heights: Integers,
    *,
    grids: Grids,
    tile: int,
    patch: int,
    most: int | None = None,
) -> Int64:
    """Return the tokens of each image, int64 [n]: of the whole, the canvas without padding, rows.

    A tile has `(tile // patch) ** 2` features, both sides in pixels; `patch` is that of a token. A
    model drops the rows or columns of features that are in the padding, and ends each row that is
    left with one token more (`image_newline`). With `most`, it scales what is left down to about so
    many tiles, if it is more than 1.1 times as long and as wide:
    `LlavaOnevisionProcessor._get_unpadded_features`.
    """
    side = tile // patch
    across, down = best_grid(widths, heights, grids=grids)
    columns, rows = across // tile * side, down // tile * side
    wider = widths / heights > columns / rows
    rows_left = rows - _padding(rows, heights * columns, widths)
    columns_left = columns - _padding(columns, widths * rows, heights)
    rows = np.where(wider, rows_left, rows)
    columns = np.where(wider, columns, columns_left)
    if most is not None:
        ratio = np.sqrt(rows * columns / (most * side**2))
        ratio = np.where(ratio > 1.1, ratio, 1.0)
        rows, columns = (rows // ratio).astype(np.int64), (columns // ratio).astype(np.int64)
    return side * side + rows * columns + rows


def _padding(features: Int64, product: Int64, divisor: Integers) -> Int64:
    """Return the features in the padding of both sides, where `product / divisor` are filled."""
    # The published form rounds to seven places before it cuts: a whole number that a float missed
    # by a little counts as that number. Whole numbers miss nothing.
    filled = product // divisor
    return (features - filled) // 2 * 2
