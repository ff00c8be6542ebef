"""Videos of a sample: frames that packing took out, as images with names of their own.

Frame 7 of a sample's second video is the member `KEY.v1.0007.jpg`; its JSON says when each frame is
shown:

    {"video_frames": [{"name": "clips/cat.mp4", "first": 0, "times": [0.0, 0.5, 1.0],
                       "duration": 1.04, "fps": 25.0}], ...}

`first` is the number of its first frame among the images of the sample, in whose order the frames
follow each other. `<video>` marks the place of a video in a text, as `<image>` that of an image.

In the pieces of a turn (`datapipe.text.messages`) a video is one `Video`, wherever it is marked. A
model with tokens for videos writes it from the frames and times that it has. For any other,
`as_frames` makes an image of each frame, with the markup of an image.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from datapipe.array_types import Bools, Int64
from datapipe.errors import DecodeError

VIDEO_FIELD = "video_frames"
"""Field of a sample's JSON that says which of its images are the frames of videos."""

VIDEO_PLACE = "<video>"
"""Marks the place of a video in a text, as LLaVA-Video, LLaMA-Factory and ms-swift write it."""

VIDEO_REMEDY = "--video-frames fps=2,max=64"
"""Option of packing that takes frames of videos, as messages show it."""

_PATH = r"<video>([^<>\s]{1,4096})</video>"  # ms-swift
_MARKS = re.compile(
    rf"{_PATH}|<(?:vila/|__dj__)?video>"
    r"|(?:<\|vision_start\|>)?(?:<\|video_pad\|>)+(?:<\|vision_end\|>)?"
)
_FRAME = re.compile(r"v(?P<video>\d+)\.(?P<frame>\d{4,})\.[a-z0-9]+")


class Video(NamedTuple):
    """One video of a sample."""

    name: str  # file that the frames were taken from
    first: int  # number of its first frame among the images of the sample
    times: tuple[float, ...]  # seconds from the beginning, one a frame, ascending
    duration: float  # seconds
    fps: float  # frames per second of the file


def has_videos(record: Any) -> bool:
    """Return whether a record says which images are the frames of videos."""
    return isinstance(record, Mapping) and bool(record.get(VIDEO_FIELD))


def video_paths_in(text: str) -> list[str]:
    """Return the paths of videos that a text names itself, as `<video>PATH</video>` of ms-swift."""
    return re.findall(_PATH, text) if "</video>" in text else []


def mark_videos(text: str, mark: str = VIDEO_PLACE) -> str:
    """Return a text of a record with videos, with `mark` at each place of a video.

    Examples:
        >>> mark_videos("<|vision_start|><|video_pad|><|vision_end|>What happens?")
        '<video>What happens?'
    """
    return _MARKS.sub(mark, text) if "<" in text else text


def frames_remedy(medium: str) -> str:
    """Return the end of a message that refuses a medium: how to pack frames, if it is a video.

    Examples:
        >>> frames_remedy("a video"), frames_remedy("sound")
        ('; to pack its frames, add --video-frames fps=2,max=64', '')
    """
    return f"; to pack its frames, add {VIDEO_REMEDY}" if "video" in medium else ""


def frame_extension(video: int, frame: int, kind: str = "jpg") -> str:
    """Return the extension of the member of a frame.

    Examples:
        >>> frame_extension(0, 7)
        'v0.0007.jpg'
    """
    return f"v{video}.{frame:04d}.{kind}"


def frame_of(ext: str) -> tuple[int, int] | None:
    """Return the numbers of video and frame that an extension names; None for other members.

    Examples:
        >>> frame_of("v0.0007.jpg"), frame_of("jpg")
        ((0, 7), None)
    """
    found = _FRAME.fullmatch(ext)
    return (int(found["video"]), int(found["frame"])) if found else None


def write_videos(videos: Sequence[Video]) -> list[dict[str, Any]]:
    """Return the value of `video_frames` for the videos of a sample."""
    return [{**video._asdict(), "times": list(video.times)} for video in videos]


def with_frames(record: Any, videos: Sequence[Video]) -> dict[str, Any]:
    """Return a record with the frames of its videos; `DecodeError` if it is no object.

    Examples:
        >>> with_frames({"id": 7}, [])
        {'id': 7, 'video_frames': []}
    """
    if not isinstance(record, Mapping | None):
        raise DecodeError("its JSON is no object that times of frames could go into")
    return {**(record or {}), VIDEO_FIELD: write_videos(videos)}


def is_kept(ranks: Int64, frames: Int64, most: int) -> Bools:
    """Return which frames stay of videos with so many, if at most `most` do: bool [n].

    They are evenly spaced, the first and the last among them; of one it is the first. `ranks` are
    the numbers of n frames, each in its video, and `frames` how many that has: int64 [n].

    Examples:
        >>> is_kept(np.arange(6), np.full(6, 6), 3).nonzero()[0]
        array([0, 3, 5])
    """
    steps = np.maximum(frames - 1, 1)
    at, before = (rank * (most - 1) // steps for rank in (ranks, ranks - 1))
    kept: Bools = (frames <= most) | (ranks == 0) | (at != before)
    return kept


def read_videos(record: Any, images: int | None = None, most: int | None = None) -> list[Video]:
    """Return the videos of a record, in the order of their frames; none where it has no such field.

    `images` is how many its sample has; None if that is not known. `most` is how many frames of
    each video are among them at most; None if all are. Raises `DecodeError` if the field is not
    what `write_videos` makes, or names frames that the sample does not have.
    """
    value = record.get(VIDEO_FIELD) if isinstance(record, Mapping) else None
    if value is None:
        return []
    with suppress(TypeError, ValueError, LookupError, OverflowError):
        if not isinstance(value, list):
            raise TypeError
        found = [_read(entry) for entry in value]
        if most is not None:
            found = _limited(found, most)
        ends = [0, *(video.first + len(video.times) for video in found)]
        is_apart = all(video.first >= end for video, end in zip(found, ends, strict=False))
        if is_apart and (images is None or ends[-1] <= images):
            return found
    raise DecodeError(
        f"its `{VIDEO_FIELD}` is not a list of name, first, times, duration and fps, one a video, "
        f"whose frames are images of the sample{'' if images is None else f' (it has {images})'}; "
        "pack the video again"
    )


def _limited(videos: Sequence[Video], most: int) -> list[Video]:
    limited, dropped = [], 0
    for video in videos:
        times = np.array(video.times)
        kept = is_kept(np.arange(len(times)), np.full(len(times), len(times)), most)
        shown = tuple(times[kept].tolist())
        limited.append(video._replace(first=video.first - dropped, times=shown))
        dropped += len(times) - len(shown)
    return limited


def _read(entry: Any) -> Video:
    """Return a video; what `write_videos` never makes raises one of several errors."""
    first, times = entry["first"], entry["times"]
    seconds = tuple(map(float, times))
    is_made = isinstance(first, int) and isinstance(times, list) and first >= 0
    if not is_made or not seconds or not seconds[0] >= 0 or list(seconds) != sorted(seconds):
        raise ValueError
    return Video(str(entry["name"]), first, seconds, float(entry["duration"]), float(entry["fps"]))
