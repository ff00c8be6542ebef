"""Insertion of image tokens into texts, and truncation that cuts no image.

`datapipe.plan.lengths.planned` says beforehand how long the outcome is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from datapipe.array_types import Int64
from datapipe.errors import PlanError
from datapipe.text.encode import EncodedText

IGNORE = -100
"""Label of a token that is not learnt; `ignore_index` of torch's cross entropy."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """A sample of L tokens, images included.

    Attributes:
        input_ids: int64 [L].
        labels: int64 [L]; `IGNORE` at images, at what is not trained, and at the first token,
            which nothing stands before to predict.
        image_at: int64 [P], where the tokens of each image begin, ascending. P is how many of the
            sample's images are in it, from the first one on.
    """

    input_ids: Int64
    labels: Int64
    image_at: Int64

    @property
    def images(self) -> int:
        """Number of the sample's images that are in it."""
        return len(self.image_at)


def expand(
    encoded: EncodedText,
    image_counts: Int64,
    image_id: int | None,
    limit: int | None = None,
    wrap: tuple[int, int] = (0, 0),
) -> Expanded:
    """Put the tokens of its images into a text.

    Args:
        encoded: the text, with P positions of images.
        image_counts: int64 [P], tokens of each image.
        image_id: what is repeated for an image; None only where there are no images.
        limit: keep at most so many tokens: the longest beginning that cuts no image and none of the
            text tokens that belong to one. An image that does not fit goes, and all after it.
        wrap: text tokens before and after an image that belong to it.

    Raises:
        PlanError: the numbers of images differ, or there are images without a token for them.
    """
    positions = len(encoded.image_at)
    if len(image_counts) != positions:
        raise PlanError(
            f"token counts of {len(image_counts)} images for a text with places for {positions}; "
            "give one for each"
        )
    if positions and image_id is None:
        raise PlanError(
            "the text has places for images, and the vocabulary no token for them; name it by "
            "TextSpec(image_token=...)"
        )
    before = np.concatenate(([0], np.cumsum(image_counts))).astype(np.int64)
    runs = encoded.image_at + before[:-1]
    total = len(encoded.tokens) + int(before[-1])
    input_ids = np.full(total, image_id or 0, np.int64)
    is_text = np.ones(total, np.bool_)
    for run, count in zip(runs.tolist(), image_counts.tolist(), strict=True):
        is_text[run : run + count] = False
    input_ids[is_text] = encoded.tokens
    labels = np.full(total, IGNORE, np.int64)
    learnt = np.flatnonzero(is_text)[encoded.trained]
    labels[learnt] = input_ids[learnt]
    labels[:1] = IGNORE
    if limit is None or total <= limit:
        return Expanded(input_ids, labels, runs)

    cut, images = limit, positions
    for number in range(positions - 1, -1, -1):
        start = max(int(runs[number]) - wrap[0], 0)
        stop = min(int(runs[number]) + int(image_counts[number]) + wrap[1], total)
        if stop > cut:
            cut, images = min(cut, start), number
    return Expanded(input_ids[:cut], labels[:cut], runs[:images])
