"""Number of tokens that a model makes of an image, by the image's size alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np

from datapipe.array_types import Int64
from datapipe.errors import PlanError
from datapipe.geometry.sizes import native
from datapipe.geometry.tiles import per_tile

ImageTokens = int | Literal["per-tile", "native"] | Callable[[Int64, Int64], Any]
"""Tokens of an image: a number, a rule's name, or a function of widths and heights."""

Counter = Callable[[Int64, Int64], Int64]

_RULES: dict[str, Counter] = {"per-tile": per_tile, "native": native}


def image_token_counter(image_tokens: ImageTokens) -> Counter:
    """Return a function of widths and heights that counts the tokens of each of n images.

    All are int64 [n]; sizes are in pixels as displayed (after EXIF orientation). `image_tokens` is
    a number for all; "per-tile" (`geometry.tiles.per_tile`) or "native" (`geometry.sizes.native`)
    with their defaults; or a function like the result.

    Raises:
        PlanError: `image_tokens` is none of these. The result raises it if a size is not above 0 or
            the given function returns something else.
    """
    if isinstance(image_tokens, int):
        number = image_tokens
        return lambda widths, heights: np.full(len(widths), number, np.int64)
    if isinstance(image_tokens, str) and image_tokens in _RULES:
        return _RULES[image_tokens]
    if callable(image_tokens):
        return partial(_call, image_tokens)
    raise PlanError(
        f"image_tokens {image_tokens!r} is none of a number, 'per-tile', 'native' and a function "
        "of widths and heights"
    )


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
