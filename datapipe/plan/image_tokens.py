"""Number of tokens that a model makes from an image, by the image's size alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from datapipe.array_types import Int64
from datapipe.errors import PlanError
from datapipe.geometry.sizes import native
from datapipe.geometry.tiles import per_tile

Counter = Callable[[Int64, Int64], Int64]
"""A function of widths and heights in pixels, int64 [n] each, that returns int64 [n]."""

_RULES: dict[str, Counter] = {"per-tile": per_tile, "native": native}


def image_token_counter(rule: str | Callable[[Int64, Int64], Any]) -> Counter:
    """Return a function that counts the tokens of images, by their size as displayed.

    `rule` is "per-tile" (`geometry.tiles.per_tile`) or "native" (`geometry.sizes.native`), or a
    user's function. The result raises PlanError for sizes below 1, and if the user's function
    returns something else.
    """
    return _RULES[rule] if isinstance(rule, str) else partial(_call, rule)


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
