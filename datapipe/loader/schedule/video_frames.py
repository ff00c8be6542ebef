"""Frames of videos among the images of samples, by the names of their members."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from datapipe.array_types import Bools, Int64
from datapipe.index.columns import Columns
from datapipe.index.files.random_read import gather
from datapipe.index.images.header import is_stored_image
from datapipe.plan.ragged import edges, places
from datapipe.text.frames import Frames
from datapipe.text.videos import frame_of


def has_frames(extensions: tuple[str, ...]) -> bool:
    """Return whether a dataset has frames of videos, by the extensions of its members."""
    return _extensions(extensions) is not None


def frames_of(columns: Columns, samples: Int64) -> Frames | None:
    """Return the frames of videos among all images of samples, int64 [n]; None if there are none.

    The images are those of the first sample in their order, then those of the next.
    """
    known = _extensions(columns.extensions)
    if known is None:
        return None
    is_image, video_of = known
    members, bounds = places(columns.sample_member, samples)
    codes = gather(columns.member_ext, members)
    images = is_image[codes]
    owners = np.repeat(np.arange(len(samples)), np.diff(bounds))[images]
    videos = video_of[codes[images]]
    count = len(videos)
    begins = np.ones(count, bool)
    begins[1:] = (owners[1:] != owners[:-1]) | (videos[1:] != videos[:-1]) | (videos[1:] < 0)
    first = np.flatnonzero(begins)
    group = edges(begins)[1:] - 1
    length = np.diff(np.append(first, count))[group]
    number = np.arange(count) - first[group]
    return Frames(np.where(videos < 0, 0, length), number)


@lru_cache(maxsize=64)
def _extensions(names: tuple[str, ...]) -> tuple[Bools, Int64] | None:
    """Return whether each is that of an image, and the number of its video, -1 for no frame."""
    frames = [frame_of(name) for name in names]
    if not any(frames):
        return None
    videos = [-1 if frame is None else frame[0] for frame in frames]
    return np.array([is_stored_image(name) for name in names]), np.array(videos)
