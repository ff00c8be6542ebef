"""Frames of videos among the images of samples, and the patches that they make together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from datapipe.array_types import Bools, Int64, Integers


@dataclass(frozen=True, slots=True)
class Frames:
    """Videos of n images. The frames of one video follow each other, and all are among the n."""

    counts: Int64  # int64 [n], frames of the image's video; 0 for an image that is no frame
    numbers: Int64  # int64 [n], number of the frame in its video

    def __getitem__(self, chosen: slice | Int64) -> Frames:
        return Frames(self.counts[chosen], self.numbers[chosen])

    @property
    def firsts(self) -> Int64:
        """Index of the first frame of each image's video, of an image itself: int64 [n]."""
        return np.arange(len(self.counts)) - self.numbers

    @property
    def videos(self) -> list[tuple[int, int]]:
        """Number of the first image of each video, and its frames."""
        firsts = np.flatnonzero((self.counts > 0) & (self.numbers == 0))
        return list(zip(firsts.tolist(), self.counts[firsts].tolist(), strict=True))

    def ends(self, temporal: int) -> Bools:
        """Return which images are the last frame of a patch of `temporal` frames: bool [n]."""
        last: Bools = (self.numbers % temporal == temporal - 1) | (self.numbers == self.counts - 1)
        return last & (self.counts > 0)

    def by_count(self) -> Iterator[tuple[int, Int64]]:
        """Yield each number of frames that a video has, with the indices of the frames of such."""
        for count in np.unique(self.counts).tolist():
            if count:
                yield count, np.flatnonzero(self.counts == count)


def bounds(
    starts: Int64,
    counts: Integers,
    wrap: tuple[int, int],
    frames: Frames | None,
    video_wrap: tuple[int, int],
) -> tuple[Int64, Int64]:
    """Return where each of n images begins and ends with what belongs to it: int64 [n] each.

    A frame has the bounds of its video. `starts` are the images' first tokens, `counts` their
    tokens; so many tokens before and after an image or a video belong to it.
    """
    stops: Int64 = starts + counts
    if frames is None:
        return starts - wrap[0], stops + wrap[1]
    video = frames.counts > 0
    firsts = frames.firsts
    lasts = firsts + np.maximum(frames.counts - 1, 0)
    before, after = (np.where(video, *pair) for pair in zip(video_wrap, wrap, strict=True))
    return starts[firsts] - before, stops[lasts] + after
