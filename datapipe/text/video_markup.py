"""Text that stands for a video, for models with tokens of videos."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from datapipe.array_types import Int64
from datapipe.declared import Count, Word, check_fields, shorten
from datapipe.errors import DecodeError, PlanError
from datapipe.short_repr import short_repr
from datapipe.text.image_markup import filled


class Shown(NamedTuple):
    """Images that one token of a text stands for."""

    images: int  # frames of a patch, or of a video without times; 1 for an image
    is_video: bool = False
    # Text of a video before its first token. Its first frame, which has no tokens, stands before
    # that, so that truncation leaves nothing of a video behind
    before: str = ""


@dataclass(frozen=True, kw_only=True, repr=False)
class VideoMarkup:
    """Text that a model expects for a video, whose frames `ImageSpec(video=...)` makes patches of.

    Attributes:
        token: the token that is repeated for a video, as it stands in the vocabulary.
        patch: text of each patch along time, with `token` once, which is repeated, and `{seconds}`
            for the mean time of its first and its last frame. None repeats the token for all
            patches at once.
        frames: frames of a patch, as `ImageSpec.temporal`.

    Raises:
        PlanError: a value is empty, or `patch` lacks the token or names something else in braces.

    Examples:
        >>> markup = datapipe.VideoMarkup(patch="<{seconds:.1f} seconds><|video_pad|>")
        >>> text = datapipe.TextSpec(tokenizer="tokenizer.json", video_markup=markup)
    """

    token: Word = "<|video_pad|>"
    patch: Word | None = None
    frames: Count = 2

    def __post_init__(self) -> None:
        check_fields(self, PlanError, "video_markup {}".format)
        if not self.token.strip():
            raise PlanError(
                f"video_markup token={shorten(self.token)}: give a token of the vocabulary"
            )
        if self.patch is None:
            return
        shown = f"video_markup patch={shorten(self.patch)}"
        written = filled(self.patch, shown, seconds=0.0)
        if (count := written.count(self.token)) != 1:
            raise PlanError(
                f"{shown} has {shorten(self.token)} {count} times; it must appear there once, and "
                "is repeated as often as a patch has tokens"
            )

    __repr__ = short_repr


def write_video(markup: VideoMarkup, times: Sequence[float]) -> tuple[str, list[Shown]]:
    """Return the text of a video by the times of its frames, and what its tokens stand for.

    `DecodeError` for a video of fewer frames than a patch, where each patch has its time.

    Examples:
        >>> write_video(VideoMarkup(patch="<{seconds} s><|video_pad|>"), [0.0, 0.5, 1.0])[0]
        '<0.25 s><|video_pad|><1.0 s><|video_pad|>'
    """
    count, size = len(times), markup.frames
    if markup.patch is None:
        return markup.token, [Shown(count, is_video=True)]
    if count < size:
        raise DecodeError(
            f"a video has {count} frame{'s' * (count != 1)}, and the model takes at least {size}; "
            "pack more of its frames"
        )
    text, shown = "", []
    for at in range(0, count, size):
        last = min(at + size, count) - 1
        text += markup.patch.format(seconds=(times[at] + times[last]) / 2)
        shown.append(Shown(last + 1 - at, is_video=True))
    if size > 1:
        shown[0] = shown[0]._replace(before=text.partition(markup.token)[0])
    return text, shown


def patch_end(markup: VideoMarkup | None) -> str:
    """Return the text of a patch behind its tokens; none where all patches have one run."""
    if markup is None or markup.patch is None:
        return ""
    return markup.patch.format(seconds=0.0).rpartition(markup.token)[2]


def frames_at(tokens_at: Int64, shown: Sequence[Shown], ids: Callable[[str], list[int]]) -> Int64:
    """Return the text tokens before each image and frame, of those before the tokens for them.

    `ids` returns the tokens of a text.
    """
    counts = [each.images for each in shown]
    at = np.repeat(tokens_at, counts)
    for first, each in zip(accumulate(counts, initial=0), shown, strict=False):
        if each.before:
            at[first] -= len(ids(each.before))
    return at
