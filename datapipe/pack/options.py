"""Options of a pack, and how sizes and limits are written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from datapipe.declared import Count, check_fields
from datapipe.decode.image import MAX_PIXELS
from datapipe.decode.shrink import ImageFormat, Quality, ShrinkOptions
from datapipe.decode.video import VIDEO_TIMEOUT, VideoOptions, parse_video_frames
from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import Captions
from datapipe.pack.notes import FOUND
from datapipe.pack.workers.prepare import Check, Pages
from datapipe.pack.writers.shards import ShardSize
from datapipe.quantities import UNITS, split_quantity
from datapipe.text.videos import VIDEO_REMEDY

_JUDGED_AFTER = 1000
# Of small data, one broken file is a large share and says nothing of the rest.
_ALWAYS_ALLOWED = 5
_ALWAYS_SHARE = 1 / 3
_ALLOWS_SOME = 0.05


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """Options that the bytes of the output depend on. They stand in the manifest."""

    format: str  # name of the reader
    shard_size: str = "512MB"  # bytes ("512MB") or samples ("10000") a shard
    # "decode" refuses what training could not decode, "header" reads headers
    check: Check = "decode"
    limit: Count | None = None  # most inputs taken, None for all
    max_pixels: Count = MAX_PIXELS  # images with more are rejected
    # "first" takes the first page or frame of an image file, "all" makes each an image
    pages: Pages = "first"
    # `max_side`, `quality`, `image_format`: of images that are made smaller; see `ShrinkOptions`
    max_side: Count | None = None
    quality: Quality | None = None
    image_format: ImageFormat = "keep"
    # `video_frames`, `video_size`, `video_timeout`: of the frames that are taken of videos
    video_frames: str | None = None  # as `parse_video_frames` reads it; None rejects videos
    video_size: Count | None = None
    video_timeout: float = VIDEO_TIMEOUT
    # `image_column`, `text_column`, `include`, `ignore`, `key_from`, `map`, `join`, `captions`: see
    # `ReadOptions`
    image_column: str | None = None
    text_column: str | None = None
    include: str | None = None
    ignore: str | None = None
    key_from: str | None = None
    map: str | None = None
    join: str | None = None
    captions: Captions | None = None

    def __post_init__(self) -> None:
        check_fields(self, PackError)
        videos = self.videos  # refuses what is impossible
        for name, is_given in (
            ("--video-size", self.video_size is not None),
            ("--video-timeout", self.video_timeout != VIDEO_TIMEOUT),
        ):
            if is_given and videos is None:
                raise PackError(
                    f"{name} has no effect without frames of videos; add {VIDEO_REMEDY}"
                )
        if self.max_pixels > MAX_PIXELS and self.max_side is None:
            raise PackError(
                f"--max-pixels {self.max_pixels:,}: a loader refuses images of more than "
                f"{MAX_PIXELS:,} pixels; give --max-side too, to make them smaller"
            )

    @property
    def videos(self) -> VideoOptions | None:
        """Options of the frames of videos; None if videos are rejected."""
        if self.video_frames is None:
            return None
        return parse_video_frames(
            self.video_frames, size=self.video_size, timeout=self.video_timeout
        )

    @property
    def shrink(self) -> ShrinkOptions:
        return ShrinkOptions(
            max_side=self.max_side, quality=self.quality, image_format=self.image_format
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what stands in the manifest: the usual three, and what differs from its default.

        So an option that is new in a later version does not make it refuse what this one began.
        """
        always = ("format", "shard_size", "check")
        defaults = asdict(PackOptions(format=self.format))
        values = asdict(self).items()
        return {name: value for name, value in values if name in always or value != defaults[name]}


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a manifest without what was found, which a pack need not find again."""
    return {name: value for name, value in options.items() if not name.startswith(FOUND)}


@dataclass(frozen=True, slots=True)
class MaxRejects:
    """Limit of rejected inputs: a number, or a share judged once 1,000 inputs were seen.

    A share of 5 % or more allows five rejects, as long as two of three inputs are taken.
    """

    limit: float
    is_share: bool

    def exceeded(self, rejected: int, inputs: int, *, at_end: bool) -> bool:
        if not self.is_share:
            return rejected > self.limit
        allowed = self.limit * inputs
        if self.limit >= _ALLOWS_SOME:
            allowed = max(allowed, min(_ALWAYS_ALLOWED, _ALWAYS_SHARE * inputs))
        return (at_end or inputs >= _JUDGED_AFTER) and rejected > allowed

    def __str__(self) -> str:
        return f"{self.limit * 100:g}%" if self.is_share else f"{self.limit:,}"


def parse_shard_size(text: str) -> ShardSize:
    """Read a shard size: `"10000"` is samples, `"512MB"` or `"1GiB"` is bytes."""
    number, unit = split_quantity(text) or ("0", "")
    if not unit and "." not in number and int(number) > 0:
        return ShardSize(samples=int(number))
    if unit in UNITS and 0 < float(number) * UNITS[unit] < 2**63:
        return ShardSize(bytes=int(float(number) * UNITS[unit]))
    raise PackError(
        f"--shard-size {text!r} is neither a number of samples such as 10000 nor a size such as "
        "512MB or 1GiB"
    )


def parse_max_rejects(text: str) -> MaxRejects:
    """Read a limit: `"20"` is a number of inputs, `"5%"` and `"0.05"` are a share."""
    is_share = text.endswith("%") or "." in text
    with suppress(ValueError):
        limit = float(text.removesuffix("%")) if is_share else int(text)
        if text.endswith("%"):
            limit /= 100
        if 0 <= limit <= (1 if is_share else math.inf):
            return MaxRejects(limit, is_share)
    raise PackError(
        f"--max-rejects {text!r} is neither a number such as 20 nor a share such as 5% or 0.05"
    )
