"""Lengths of samples once images are in their texts and truncation has cut them.

The vectorised twin of `datapipe.text.truncate.expand`, which does the same to tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from datapipe.array_types import Int64, Integers
from datapipe.plan.ragged import edges, owners, totals
from datapipe.text.frames import Frames, bounds


@dataclass(frozen=True, slots=True)
class Planned:
    """Lengths of n samples; all int64 [n]."""

    tokens: Int64  # of text and images together
    labels: Int64  # tokens that are predicted: trained, and not the first of their sample
    images: Int64  # that the sample keeps, from the first one on
    image_tokens: Int64  # of these images


def planned(
    text_tokens: Int64,  # int64 [n], of text alone; -1 for one that cannot be used
    *,
    image_at: Integers,  # int [P], the sample's text tokens before each of its images, ascending
    image_counts: Integers,  # int [P], tokens of each image
    image_offsets: Int64,  # int64 [n + 1]; sample i has images `image_offsets[i]` to the next
    label_start: Integers,  # int [S], beginnings of runs of trained tokens, in text tokens
    label_stop: Integers,
    label_offsets: Int64,  # int64 [n + 1], like `image_offsets`
    limit: int | None = None,  # tokens of a sample at most; None keeps all
    wrap: tuple[int, int] = (0, 0),  # text tokens before and after an image that belong to it
    frames: Frames | None = None,  # of the P images, those that are frames; None for none
    video_wrap: tuple[int, int] = (0, 0),  # text tokens around all frames of a video
) -> Planned:
    """Return the lengths of n samples with their P images, each at most `limit` tokens long.

    A sample over the limit keeps the longest beginning that cuts no image, no video and none of the
    text tokens that belong to one; an image that does not fit is dropped, with all after it. That
    may leave no token at all. A text that cannot be used has -1 tokens in the result too.
    """
    sums = edges(image_counts)
    tokens: Int64 = text_tokens + np.diff(sums[image_offsets])
    cut: Int64 = tokens.copy() if limit is None else np.minimum(tokens, limit)
    owner = owners(image_offsets)
    first = image_at + sums[:-1] - sums[image_offsets[:-1]][owner]  # token of each image
    start, stop = bounds(first, image_counts, wrap, frames, video_wrap)
    start, stop = np.maximum(start, 0), np.minimum(stop, tokens[owner])
    # Once more if wraps of neighbours overlap and the new cut falls into the image before.
    while (inside := (start < cut[owner]) & (cut[owner] < stop)).any():
        np.minimum.at(cut, owner[inside], start[inside])
    kept = stop <= cut[owner]
    image_tokens = totals(np.where(kept, image_counts, 0), image_offsets)
    text = cut - image_tokens

    trained = np.minimum(label_stop, text[owners(label_offsets)]) - label_start
    # Nothing precedes the first token of a sample to predict it from.
    leading_images = totals(np.where(image_at == 0, image_counts, 0), image_offsets)
    labelled_first = totals(label_start == 0, label_offsets) > 0
    unpredicted = labelled_first & (leading_images == 0) & (text > 0)
    return Planned(
        tokens=cut,
        labels=totals(np.maximum(trained, 0), label_offsets) - unpredicted,
        images=totals(kept.astype(np.int64), image_offsets),
        image_tokens=image_tokens,
    )
