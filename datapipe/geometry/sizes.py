"""Sizes that images are resized to.

Every function takes the widths and heights of n images and gives int64 [n] of each; one image is an
array of one. Sizes are in pixels. `PlanError` if one is not above 0.
"""

from __future__ import annotations

import numpy as np

from datapipe.array_types import Float64, Int64, Integers
from datapipe.errors import PlanError

LONGEST = 32
"""Times the shorter side that the longer one gets at most where the shorter one is given.

A line of 20,000 x 1 pixels whose shorter side becomes 336 would take 6 gigabytes otherwise.
"""

# Qwen2-VL's defaults: patches of 14 pixels merged two by two, 4 to 1,280 tokens. The image
# processor's own limits (56 * 56 and 28 * 28 * 1280 pixels) in its preprocessor_config.json.
NATIVE_MIN_PIXELS = 56 * 56
NATIVE_MAX_PIXELS = 28 * 28 * 1280
NATIVE_MAX_RATIO = 200
"""Times the shorter side that the longer one has at most: `smart_resize` refuses other images."""


def check_sizes(widths: Integers, heights: Integers) -> None:
    """Raise `PlanError` if a size is not above 0."""
    bad = np.flatnonzero((widths < 1) | (heights < 1))
    if len(bad):
        raise PlanError(
            f"an image of {widths[bad[0]]} x {heights[bad[0]]} pixels (number {bad[0]} of "
            f"{len(widths)}): both sides have to be above 0; pack or index the dataset again"
        )


def one(width: int, height: int) -> tuple[Int64, Int64]:
    """Return the sides of an image as arrays, for the functions here."""
    return np.array([width], np.int64), np.array([height], np.int64)


def native_size(
    widths: Integers,
    heights: Integers,
    *,
    multiple_of: int,
    min_pixels: int,
    max_pixels: int,
    least_side: int = 1,
    least: int = 0,
    whole_pixels: bool = False,
    frames: int | None = None,
    temporal: int = 1,
) -> tuple[Int64, Int64]:
    """Return sizes near the images' own: (widths, heights), int64 [n] each.

    Both sides become multiples of `multiple_of` with the aspect ratio nearly kept and the area
    within the limits. This is `smart_resize` of Qwen2-VL's image processor, in the same
    floating-point steps. It refuses an aspect ratio over `NATIVE_MAX_RATIO`; here such an image
    gets the size that its formula gives, so that it can be planned; "native" refuses its pixels.

    With `least_side`, images with a shorter side count as enlarged to it, as in GLM-4V's
    `smart_resize`; with `whole_pixels`, one side after the other, as in PaddleOCR-VL's. With
    `least`, rounded sides are at least that before their area is compared with the limits, as in
    LFM2-VL's. With `frames`, each image is a frame of a video with so many frames; the limits are
    for the pixels of all of them, in patches of `temporal` frames, as in the `smart_resize` of
    Qwen3-VL's video processor.
    """
    check_sizes(widths, heights)
    wide, high = widths.astype(np.float64), heights.astype(np.float64)
    if least_side > 1 and whole_pixels:
        wide = np.where(high < least_side, np.rint(wide * least_side / high), wide)
        high = np.maximum(high, least_side)
        high = np.where(wide < least_side, np.rint(high * least_side / wide), high)
        wide = np.maximum(wide, least_side)
    elif least_side > 1:
        scale = np.maximum(least_side / wide, least_side / high)
        small = scale > 1
        wide, high = (np.where(small, np.trunc(side * scale), side) for side in (wide, high))
    # rint rounds halves to even, as Python's round does.
    across, down = (
        np.maximum(np.rint(side / multiple_of) * multiple_of, least) for side in (wide, high)
    )
    count = whole = 1
    if frames is not None:
        count = max(frames, temporal)  # a single one is repeated
        whole = round(count / temporal) * temporal
    area = whole * across * down
    shrink = np.sqrt(count * wide * high / max_pixels)
    grow = np.sqrt(min_pixels / (count * wide * high))

    def fit(rounded: Float64, side: Float64) -> Int64:
        smaller = np.maximum(multiple_of, np.floor(side / shrink / multiple_of) * multiple_of)
        larger = np.ceil(side * grow / multiple_of) * multiple_of
        fitted = np.where(area > max_pixels, smaller, np.where(area < min_pixels, larger, rounded))
        return fitted.astype(np.int64)

    return fit(across, wide), fit(down, high)


def native(widths: Integers, heights: Integers) -> Int64:
    """Return the tokens of images that keep their resolution, as in Qwen2-VL: int64 [n].

    Two patches along a side, of 14 pixels, become one token. See `native_size`.
    """
    least, most = NATIVE_MIN_PIXELS, NATIVE_MAX_PIXELS
    across, down = native_size(widths, heights, multiple_of=28, min_pixels=least, max_pixels=most)
    return (across // 28) * (down // 28)


def budget_size(
    widths: Integers, heights: Integers, *, tokens: int, patch: int, merge: int
) -> tuple[Int64, Int64]:
    """Return the largest sizes with at most so many tokens: (widths, heights), int64 [n] each.

    The aspect ratio is kept, and both sides are rounded down to whole tokens. This is
    `get_aspect_ratio_preserving_size` of transformers' `image_processing_gemma4.py`, in the same
    floating-point steps. `merge` patches along each side, of `patch` pixels, become one token.
    """
    check_sizes(widths, heights)
    side = patch * merge
    wide, high = widths.astype(np.int64), heights.astype(np.int64)
    factor = np.sqrt(tokens * merge**2 * patch**2 / (high * wide))
    across = np.floor(factor * wide / side).astype(np.int64)
    down = np.floor(factor * high / side).astype(np.int64)
    # A line is as long as its aspect ratio in whole tokens.
    across, down = (
        np.where(down == 0, np.minimum(wide // high, tokens), across),
        np.where(across == 0, np.minimum(high // wide, tokens), down),
    )
    return np.maximum(across, 1) * side, np.maximum(down, 1) * side


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


def shortest(widths: Integers, heights: Integers, *, side: int) -> tuple[Int64, Int64]:
    """Return sizes whose shorter side is `side`, the longer one rounded down: (widths, heights).

    This is `get_resize_output_image_size` of transformers' `image_transforms.py`, and torchvision's
    `Resize` with one number. The longer side gets at most `LONGEST` times the shorter one: beyond,
    the aspect ratio is not kept.
    """
    check_sizes(widths, heights)
    wide, high = widths.astype(np.int64), heights.astype(np.int64)
    across = np.where(wide <= high, side, np.minimum(side * wide // high, LONGEST * side))
    down = np.where(wide <= high, np.minimum(side * high // wide, LONGEST * side), side)
    return across, down


def cover(width: int, height: int, *, inner: tuple[int, int]) -> tuple[int, int]:
    """Return the least (height, width) of the aspect ratio of an image that covers `inner`.

    `inner` is (height, width); the longer side is rounded down.
    """
    inner_height, inner_width = inner
    if height * inner_width <= width * inner_height:
        return inner_height, max(inner_width, width * inner_height // height)
    return max(inner_height, height * inner_width // width), inner_width


def contain(width: int, height: int, *, outer: tuple[int, int]) -> tuple[int, int]:
    """Return the largest (height, width) of the aspect ratio of an image that fits into `outer`.

    `outer` is (height, width); the shorter side is rounded to the nearest.
    """
    outer_height, outer_width = outer
    if height * outer_width <= width * outer_height:
        return max(1, (height * outer_width + width // 2) // width), outer_width
    return outer_height, max(1, (width * outer_height + height // 2) // height)
