"""How many tokens a model makes of an image, by the image's size alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from datapipe.errors import PlanError
from datapipe.plan.ragged import Int64

Whole = npt.NDArray[np.integer]
ImageTokens = int | Literal["per-tile", "native"] | Callable[[Int64, Int64], Any]
"""Tokens of an image: a number, a rule's name, or a function of widths and heights."""

# Qwen2-VL's defaults: patches of 14 pixels merged two by two, 4 to 1,280 tokens. The image
# processor's own limits (56 * 56 and 28 * 28 * 1280 pixels) in its preprocessor_config.json.
NATIVE_MIN_PIXELS = 56 * 56
NATIVE_MAX_PIXELS = 28 * 28 * 1280


Counter = Callable[[Int64, Int64], Int64]


def image_token_counter(image_tokens: ImageTokens) -> Counter:
    """A function that gives the tokens of each of n images.

    Args:
        image_tokens: a number for all; "per-tile" (`per_tile`) or "native" (`native`) with their
            defaults; or a function of widths and heights, int64 [n] each, that returns [n] whole
            numbers.

    Returns:
        A function of widths and heights, int64 [n] each, in pixels as displayed (after EXIF
        orientation), that returns int64 [n]. It raises `PlanError` where a size is not above 0 or
        the given function returns something else.

    Raises:
        PlanError: `image_tokens` is none of these.
    """
    if isinstance(image_tokens, int):
        number = image_tokens
        return lambda widths, heights: np.full(len(widths), number, np.int64)
    if image_tokens == "per-tile":
        return per_tile
    if image_tokens == "native":
        return native
    if callable(image_tokens):
        return partial(_call, image_tokens)
    raise PlanError(
        f"image_tokens {image_tokens!r} is none of a number, 'per-tile', 'native' and a function "
        "of widths and heights"
    )


def native(
    widths: Whole,
    heights: Whole,
    *,
    patch: int = 14,
    merge: int = 2,
    min_pixels: int = NATIVE_MIN_PIXELS,
    max_pixels: int = NATIVE_MAX_PIXELS,
) -> Int64:
    """Tokens of images that keep their own resolution, as in Qwen2-VL: int64 [n].

    Args:
        widths, heights: int [n], pixels.
        patch: side of a patch in pixels.
        merge: patches merged along a side into one token.
        min_pixels, max_pixels: see `native_size`.
    """
    side = patch * merge
    across, down = native_size(
        widths, heights, multiple_of=side, min_pixels=min_pixels, max_pixels=max_pixels
    )
    return (across // side) * (down // side)


def native_size(
    widths: Whole,
    heights: Whole,
    *,
    multiple_of: int = 28,
    min_pixels: int = NATIVE_MIN_PIXELS,
    max_pixels: int = NATIVE_MAX_PIXELS,
) -> tuple[Int64, Int64]:
    """Sizes that images are resized to: (widths, heights) in pixels, int64 [n] each.

    Both sides become multiples of `multiple_of` with the aspect ratio nearly kept and the area
    within the limits. This is `smart_resize` of Qwen2-VL's image processor, in the same
    floating-point steps. It refuses an aspect ratio over 200; here such an image gets the size that
    its formula gives.

    Raises:
        PlanError: a size is not above 0, or the limits exclude each other.
    """
    _check_sizes(widths, heights)
    if multiple_of < 1 or not 0 < min_pixels <= max_pixels:
        raise PlanError(
            f"multiple_of {multiple_of}, min_pixels {min_pixels}, max_pixels {max_pixels}: all "
            "have to be above 0, and min_pixels at most max_pixels"
        )
    wide, high = widths.astype(np.float64), heights.astype(np.float64)
    # rint rounds halves to even, as Python's round does.
    across = np.rint(wide / multiple_of) * multiple_of
    down = np.rint(high / multiple_of) * multiple_of
    area = across * down
    shrink = np.sqrt(wide * high / max_pixels)
    grow = np.sqrt(min_pixels / (wide * high))

    def fit(rounded: npt.NDArray[np.float64], side: npt.NDArray[np.float64]) -> Int64:
        smaller = np.maximum(multiple_of, np.floor(side / shrink / multiple_of) * multiple_of)
        larger = np.ceil(side * grow / multiple_of) * multiple_of
        fitted = np.where(area > max_pixels, smaller, np.where(area < min_pixels, larger, rounded))
        return fitted.astype(np.int64)

    return fit(across, wide), fit(down, high)


def per_tile(
    widths: Whole,
    heights: Whole,
    *,
    tile: int = 448,
    tokens: int = 256,
    max_tiles: int = 12,
    thumbnail: bool = True,
) -> Int64:
    """Tokens of images cut into square tiles, as in InternVL: int64 [n].

    Args:
        widths, heights: int [n], pixels.
        tile: side of a tile in pixels.
        tokens: of a tile.
        max_tiles: tiles of an image at most, the thumbnail not counted.
        thumbnail: an image of several tiles gets one more that shows the whole of it.
    """
    across, down = tile_grid(widths, heights, tile=tile, max_tiles=max_tiles)
    tiles = across * down
    if thumbnail:
        tiles += tiles > 1
    return tiles * tokens


def tile_grid(
    widths: Whole, heights: Whole, *, tile: int = 448, max_tiles: int = 12
) -> tuple[Int64, Int64]:
    """Tiles along width and height of each image: int64 [n] each.

    The grid whose aspect ratio is closest to the image's; of several equally close ones the largest
    that the image covers by more than half. This is `dynamic_preprocess` of InternVL 1.5 and later.

    Raises:
        PlanError: a size is not above 0, or `tile` or `max_tiles` is below 1.
    """
    _check_sizes(widths, heights)
    if tile < 1 or max_tiles < 1:
        raise PlanError(f"tile {tile} and max_tiles {max_tiles}: both have to be at least 1")
    ratio = widths / heights
    area = widths.astype(np.int64) * heights
    closest = np.full(len(widths), np.inf)
    across = np.ones(len(widths), np.int64)
    down = np.ones(len(widths), np.int64)
    for columns, rows in _grids(max_tiles):
        distance = np.abs(ratio - columns / rows)
        better = distance < closest
        better |= (distance == closest) & (area > 0.5 * tile * tile * columns * rows)
        closest[better] = distance[better]
        across[better] = columns
        down[better] = rows
    return across, down


def _call(function: Callable[[Int64, Int64], Any], widths: Int64, heights: Int64) -> Int64:
    counts = np.asarray(function(widths, heights))
    if counts.shape != widths.shape or not np.issubdtype(counts.dtype, np.integer):
        raise PlanError(
            f"image_tokens returned {counts.dtype} of shape {counts.shape} for {len(widths)} "
            f"images; it has to return one whole number for each, int64 [{len(widths)}]"
        )
    if len(counts) and counts.min() < 1:
        worst = int(np.argmin(counts))
        raise PlanError(
            f"image_tokens returned {counts[worst]} for an image of {widths[worst]} x "
            f"{heights[worst]} pixels; an image has at least one token"
        )
    return counts.astype(np.int64)


def _grids(max_tiles: int) -> list[tuple[int, int]]:
    """Grids of up to `max_tiles` tiles, those of fewer tiles first."""
    sides = range(1, max_tiles + 1)
    grids = [(columns, rows) for columns in sides for rows in sides if columns * rows <= max_tiles]
    return sorted(grids, key=lambda grid: grid[0] * grid[1])


def _check_sizes(widths: Whole, heights: Whole) -> None:
    bad = np.flatnonzero((widths < 1) | (heights < 1))
    if len(bad):
        raise PlanError(
            f"an image of {widths[bad[0]]} x {heights[bad[0]]} pixels (number {bad[0]} of "
            f"{len(widths)}): both sides have to be above 0; pack or index the dataset again"
        )
