"""Sizes of images that fill a budget of tokens, as Gemma 4 takes them."""

from __future__ import annotations

import numpy as np

from datapipe.array_types import Int64, Integers
from datapipe.geometry.sizes import check_sizes


def budget_size(
    widths: Integers, heights: Integers, *, tokens: int, patch: int, merge: int
) -> tuple[Int64, Int64]:
    """Return the largest sizes with at most so many tokens: (widths, heights), int64 [n] each.

    The aspect ratio is kept, and both sides are rounded down to whole tokens. This is
    `get_aspect_ratio_preserving_size` of transformers' `image_processing_gemma4.py`, in the same
    floating-point steps.

    Args:
        widths, heights: int [n], pixels.
        tokens: of an image at most.
        patch: side of a patch in pixels.
        merge: patches along each side that become one token.

    Raises:
        PlanError: a size is not above 0.
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
