"""Images of any resolution, as LLaVA-NeXT takes them: one of a few canvases, cut into tiles.

The canvas that keeps most of an image's pixels is chosen; the image is fitted into its middle and
the rest stays black. Functions take the widths and heights of n images, in pixels; grids are
(height, width). The sources are transformers' `select_best_resolution` and `get_patch_output_size`
(`image_processing_utils.py`), and of the tokens `LlavaNextProcessor._get_number_of_features`.
"""

from __future__ import annotations

import numpy as np

from datapipe.array_types import Int64, Integers
from datapipe.geometry.sizes import check_sizes

Grids = tuple[tuple[int, int], ...]
"""Canvases, (height, width) each, multiples of a tile's side."""


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
    widths: Integers, heights: Integers, *, grids: Grids, tile: int, patch: int
) -> Int64:
    """Return the tokens of each image, int64 [n]: of the whole, the canvas without padding, rows.

    A tile has `(tile // patch) ** 2` features, both sides in pixels. A model drops the rows or
    columns of features that are in the padding, and ends each row that is left with one token more
    (`image_newline`).
    """
    side = tile // patch
    across, down = best_grid(widths, heights, grids=grids)
    columns, rows = across // tile * side, down // tile * side
    wider = widths / heights > columns / rows
    rows_left = rows - _padding(rows, heights * columns, widths)
    columns_left = columns - _padding(columns, widths * rows, heights)
    rows = np.where(wider, rows_left, rows)
    columns = np.where(wider, columns, columns_left)
    return side * side + rows * columns + rows


def _padding(features: Int64, product: Int64, divisor: Integers) -> Int64:
    """Return the features in the padding of both sides, where `product / divisor` are filled."""
    # The published form rounds to seven places before it cuts: a whole number that a float missed
    # by a little counts as that number. Whole numbers miss nothing.
    filled = product // divisor
    return (features - filled) // 2 * 2
