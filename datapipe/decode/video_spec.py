"""Options of the frames of videos in a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from datapipe.declared import Say, Within, check_fields, take_if
from datapipe.errors import PlanError
from datapipe.short_repr import short_repr

_MOST_PIXELS = 2**40  # of all frames of a video

Volume = Annotated[int, Within(1, _MOST_PIXELS)]
Rate = Annotated[float, take_if(lambda rate: rate > 0), Say("a number above 0")]


@dataclass(frozen=True, kw_only=True, repr=False)
class VideoSpec:
    """Size of the frames of videos, for models that take `ImageSpec.temporal` of them as one patch.

    Batches then have `pixel_values_videos` and `video_grid_thw`, int64 [videos, 3]: patches along
    time, down and across. An odd number of frames repeats the last one. Without a `VideoSpec` each
    frame is an image of its own.

    Attributes:
        min_pixels, max_pixels: least and most pixels after resizing, of what `limits` says. The
            defaults are those of Qwen2-VL.
        limits: of each "frame" alone, as for Qwen2-VL, or of all frames of a "video" together, as
            for Qwen3-VL: the more frames, the smaller each.
        tokens_per_second: positions of tokens along time advance by so many a second, as for
            Qwen2.5-VL, and batches have `second_per_grid_ts`, the seconds of a patch. None counts
            the patches.

    Raises:
        PlanError: a value is impossible.

    Examples:
        >>> video = datapipe.VideoSpec(min_pixels=4096, max_pixels=2**20, limits="video")
        >>> datapipe.ImageSpec(resize="native", temporal=2, video=video).video.max_pixels
        1048576
    """

    min_pixels: Volume = 128 * 28 * 28
    max_pixels: Volume = 768 * 28 * 28
    limits: Literal["frame", "video"] = "frame"
    tokens_per_second: Rate | None = None

    def __post_init__(self) -> None:
        check_fields(self, PlanError, "video {}".format)
        if self.min_pixels > self.max_pixels:
            raise PlanError(
                f"video min_pixels={self.min_pixels:,} is above max_pixels={self.max_pixels:,}; "
                "give a range, both ends of it"
            )

    __repr__ = short_repr
