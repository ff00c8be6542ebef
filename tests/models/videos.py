"""Checkpoints of the Qwen families with video processors, and samples of images and videos."""

import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers.video_utils import VideoMetadata

import datapipe
from datapipe.text.videos import Video, frame_extension, write_videos

from ..decode.fitted import photo
from .checkpoints import CASES, QWEN_IMAGE, Case
from .video_processors import Qwen2VLVideoProcessor, Qwen3VLVideoProcessor, with_pillow


def _with_videos(template: str, text_part: str) -> str:
    video = "{% elif content.type == 'video' or 'video' in content %}" + QWEN_IMAGE
    assert text_part in template
    return template.replace(text_part, video.replace("image", "video") + text_part)


def _case(source: str, videos: type, least: int, most: int, **options: Any) -> Case:
    case = CASES[source]
    part = "{%- elif 'text'" if "{%- elif 'text'" in case.template else "{% elif 'text'"
    size = {"shortest_edge": least, "longest_edge": most}
    return replace(
        case,
        template=_with_videos(case.template, part),
        added=("<|video_pad|>", "<|image_pad|>", "<|vision_start|>", "<|vision_end|>"),
        videos=videos,
        video_options={"size": size, "cap_pixels_per_frame": False},
        **options,
    )


_PACE = {"vision_config": {"tokens_per_second": 2}}
VIDEO_CASES = {
    "qwen2_vl": _case("Qwen/Qwen2-VL-7B-Instruct", Qwen2VLVideoProcessor, 3136, 200_704),
    "qwen2_5_vl": _case(
        "Qwen/Qwen2.5-VL-7B-Instruct", Qwen2VLVideoProcessor, 3136, 200_704, config=_PACE
    ),
    "qwen3_vl": _case("Qwen/Qwen3-VL-8B-Instruct", Qwen3VLVideoProcessor, 4096, 400_000),
    "qwen3_5": _case("qwen3_5", Qwen3VLVideoProcessor, 4096, 400_000),
}


@dataclass(frozen=True)
class Clip:
    """Frames of a video, by their numbers in a file of 25 frames a second."""

    frames: list[Image.Image]
    numbers: list[int]
    total: int

    def video(self, first: int) -> Video:
        times = tuple(number / 25.0 for number in self.numbers)
        return Video("clip.mp4", first, times, self.total / 25.0, 25.0)

    def metadata(self) -> VideoMetadata:
        return VideoMetadata(
            total_num_frames=self.total, fps=25.0, frames_indices=list(self.numbers)
        )


@dataclass(frozen=True)
class VideoSample:
    """A question with images and videos in it, and its answer."""

    question: list[str | Image.Image | Clip]
    answer: str


def clip(count: int, size: tuple[int, int], step: int = 12, left: int = 0) -> Clip:
    """A camera that moves over a photograph."""
    source = photo("coffee.png")
    frames = [
        source.crop((left + 4 * n, 3 * n, left + 4 * n + 200, 3 * n + 150)).resize(size)
        for n in range(count)
    ]
    return Clip(frames, [step * number for number in range(count)], step * count)


def picture(size: tuple[int, int]) -> Image.Image:
    return photo("astronaut.png").resize(size)


def samples() -> list[VideoSample]:
    """A video, an image and a video, several videos, none, of even and odd numbers of frames."""
    return [
        VideoSample([clip(4, (120, 90)), "What happens?"], "The camera moves."),
        VideoSample(
            [picture((80, 60)), "Is it in ", clip(5, (64, 96), step=25), " this one?"], "No, not."
        ),
        VideoSample(["Say a word."], "A word."),
        VideoSample(
            [clip(3, (60, 60)), clip(2, (90, 50), step=250, left=90), "Compare."], "Both move."
        ),
        VideoSample([picture((70, 110)), picture((50, 40)), "What?"], "Two images."),
    ]


def write_shards(folder: Path, samples: Sequence[VideoSample], *, told: bool = True) -> Path:
    """Write samples as a tar with frames as members of their own, and index it.

    Unless `told`, the records say nothing of videos.
    """
    folder.mkdir()
    with tarfile.open(folder / "data-000000.tar", "w") as tar:
        for key, sample in enumerate(samples):
            members: list[tuple[str, bytes]] = []
            videos: list[Video] = []
            text, images = "", 0
            for part in sample.question:
                if isinstance(part, str):
                    text += part
                elif isinstance(part, Clip):
                    text += "<video>" if told else ""
                    names = [
                        frame_extension(len(videos), n, "png") for n in range(len(part.frames))
                    ]
                    videos.append(part.video(images))
                    members += zip(names, map(_png, part.frames), strict=True)
                    images += len(part.frames)
                else:
                    text += "<image>"
                    members.append((f"i{images}.png", _png(part)))
                    images += 1
            turns = [("user", text), ("assistant", sample.answer)]
            record: dict[str, Any] = {
                "messages": [{"role": role, "content": said} for role, said in turns]
            }
            if videos and told:
                record["video_frames"] = write_videos(videos)
            members.append(("json", json.dumps(record).encode()))
            for name, data in members:
                info = tarfile.TarInfo(f"{key:03d}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    datapipe.index_shards(folder)
    return folder


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "png")
    return out.getvalue()


def theirs(processor: Any, sample: VideoSample) -> dict[str, Any]:
    """Return the result of the processor for a sample."""
    content: list[dict[str, Any]] = []
    images = [part for part in sample.question if isinstance(part, Image.Image)]
    clips = [part for part in sample.question if isinstance(part, Clip)]
    for part in sample.question:
        kind = "video" if isinstance(part, Clip) else "image"
        content.append({"type": "text", "text": part} if isinstance(part, str) else {"type": kind})
    messages = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": [{"type": "text", "text": sample.answer}]},
    ]
    text = processor.apply_chat_template(messages, tokenize=False)
    options: dict[str, Any] = {}
    if clips:
        options["videos"] = [np.stack([np.asarray(f) for f in each.frames]) for each in clips]
        options["video_metadata"] = [each.metadata() for each in clips]
        options["do_sample_frames"] = False
    with with_pillow():
        return dict(processor(images=images or None, text=[text], return_tensors="pt", **options))
