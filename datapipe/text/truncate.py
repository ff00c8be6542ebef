"""Insertion of image tokens into texts, and truncation that cuts no image.

`datapipe.plan.lengths.planned` says beforehand how long the outcome is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from datapipe.array_types import Int64
from datapipe.errors import PlanError
from datapipe.text.encode import EncodedText
from datapipe.text.frames import Frames, bounds

IGNORE = -100
"""Label of a token that is not learnt; `ignore_index` of torch's cross entropy."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """A sample of L tokens, images included, and P of the sample's images, from the first on."""

    input_ids: Int64  # int64 [L]
    # int64 [L]; `IGNORE` at images, at what is not trained, and at the first token, which nothing
    # stands before to predict
    labels: Int64
    image_at: Int64  # int64 [P], where the tokens of each image begin, ascending

    @property
    def images(self) -> int:
        """Number of the sample's images that are in it."""
        return len(self.image_at)


def expand(
    encoded: EncodedText,
    images: Sequence[Int64],
    limit: int | None = None,
    wrap: tuple[int, int] = (0, 0),
    frames: Frames | None = None,
    video_wrap: tuple[int, int] = (0, 0),
) -> Expanded:
    """Put the tokens of its images into a text; `PlanError` if the numbers of images differ.

    Args:
        encoded: the text, with P positions of images.
        images: tokens of each of P images, int64 [its length] each.
        limit: keep at most so many tokens: the longest beginning that cuts no image and none of the
            text tokens that belong to one. An image that does not fit goes, and all after it.
        wrap: text tokens before and after an image that belong to it.
        frames: of the images, those that are frames; a video is cut as a whole. None for none.
        video_wrap: text tokens before the first and after the last frame of a video.
    """
    positions = len(encoded.image_at)
    if len(images) != positions:
        raise PlanError(
            f"tokens of {len(images)} images for a text with places for {positions}; give one for "
            "each"
        )
    counts = [len(image) for image in images]
    before = np.cumsum([0, *counts], dtype=np.int64)
    runs = encoded.image_at + before[:-1]
    total = len(encoded.tokens) + int(before[-1])
    input_ids = np.empty(total, np.int64)
    is_text = np.ones(total, np.bool_)
    for run, image in zip(runs.tolist(), images, strict=True):
        input_ids[run : run + len(image)] = image
        is_text[run : run + len(image)] = False
    input_ids[is_text] = encoded.tokens
    labels = np.full(total, IGNORE, np.int64)
    learnt = np.flatnonzero(is_text)[encoded.trained]
    labels[learnt] = input_ids[learnt]
    labels[:1] = IGNORE
    if limit is None or total <= limit:
        return Expanded(input_ids, labels, runs)

    starts, stops = bounds(runs, np.array(counts, np.int64), wrap, frames, video_wrap)
    cut, kept = limit, positions
    for number in range(positions - 1, -1, -1):
        if min(int(stops[number]), total) > cut:
            cut, kept = min(cut, max(int(starts[number]), 0)), number
    return Expanded(input_ids[:cut], labels[:cut], runs[:kept])
