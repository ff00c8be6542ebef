"""Sizes whose longer side is given: Pixtral's, and the grids of tiles of Idefics 3.

Functions take the widths and heights of n images, in pixels, and compute in the floating-point
steps of their sources, so that equal sizes come out. `PlanError` if a size is not above 0.
"""

from __future__ import annotations

import numpy as np

from datapipe.array_types import Int64, Integers
from datapipe.geometry.sizes import check_sizes

_LARGEST = 4096
"""Longer side of Idefics 3 at most: `MAX_IMAGE_SIZE` of its image processor."""


def bounded_size(
    widths: Integers, heights: Integers, *, multiple_of: int, longest: int
) -> tuple[Int64, Int64]:
    """Return sizes with a longer side of at most `longest`: (widths, heights), int64 [n] each.

    Smaller images keep their size. Both sides are then rounded up to multiples of `multiple_of`.
    This is `get_resize_output_image_size` of transformers' `image_processing_pixtral.py`; a side
    that it makes 0 gets one multiple here.
    """
    check_sizes(widths, heights)
    ratio = np.maximum(np.maximum(heights / longest, widths / longest), 1.0)
    across, down = (
        np.maximum(-(-np.floor(side / ratio).astype(np.int64) // multiple_of), 1) * multiple_of
        for side in (widths, heights)
    )
    return across, down


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
