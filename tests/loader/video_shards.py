"""Shards of stills and videos, each frame of its own colour, as packing writes them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from PIL import Image

from datapipe.text.videos import VIDEO_FIELD, Video, frame_extension, write_videos

FRAMES = {"000": (5,), "001": (), "002": (3, 9), "003": (40,), "004": (2,)}
"""Frames of each video of each sample; 001 and 002 begin with a still image."""
STILLS = ("001", "002")


def level(key: str, video: int, frame: int) -> int:
    """Brightness of a frame."""
    return 40 * int(key) + 20 * video + frame


def jpeg(brightness: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (48, 32), (brightness,) * 3).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def record_of(key: str) -> dict[str, Any]:
    stills = key in STILLS
    videos, first = [], int(stills)
    for number, count in enumerate(FRAMES[key]):
        times = tuple(frame / 2 for frame in range(count))
        videos.append(Video(f"{key}-{number}.mp4", first, times, count / 2, 25.0))
        first += count
    asked = "<image>" * stills + "<video>" * len(videos)
    messages = [
        {"role": "user", "content": f"{asked}What is it?"},
        {"role": "assistant", "content": f"It is {key}."},
    ]
    fields = {VIDEO_FIELD: write_videos(videos)} if videos else {}
    return {"messages": messages, **fields}


def members_of(key: str) -> dict[str, bytes]:
    """The members of a sample, by their extensions."""
    members = {"0.jpg": jpeg(level(key, 0, 0) - 20)} if key in STILLS else {}
    for video, count in enumerate(FRAMES[key]):
        for frame in range(count):
            members[frame_extension(video, frame)] = jpeg(level(key, video, frame))
    return members | {"json": json.dumps(record_of(key)).encode()}


def make_shards(folder: Path, repeats: int = 1) -> Path:
    """A folder with a tar of all samples, or several, which have no index yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(repeats):
        with tarfile.open(folder / f"shard-{number:06}.tar", "w") as tar:
            for key in FRAMES:
                for ext, content in members_of(key).items():
                    info = tarfile.TarInfo(f"{key}.{ext}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    return folder
