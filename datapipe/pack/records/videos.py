"""Videos that records hold or name, and their places in a text.

A video is a file, as a path, bytes or a struct of both, or its frames: a list of images, or a
folder of them. It stands in a field of the record, or in a part of a message:

- LLaVA-Video: `video`, and `<image>` in the text at its place.
- Qwen-VL, LLaMA-Factory, ms-swift: `video` or `videos`, and `<video>` at each place; ms-swift
  also has `<video>PATH</video>`.
- OpenAI, Qwen-VL, vLLM: parts `{"type": "video", "video": ...}` and `video_url`; the frames of a
  list may have `fps` or `sample_fps` beside them.
- InternVL, ShareGPTVideo: `video` names a folder of frames, in the order of the numbers there.

Sources: LLaVA-VL/LLaVA-NeXT `llava/train/train.py`, QwenLM/Qwen2.5-VL
`qwen-vl-finetune/qwenvl/data/data_processor.py` and `qwen-vl-utils`, hiyouga/LLaMA-Factory
`data/mllm_video_demo.json`, modelscope/ms-swift (custom datasets).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from datapipe.errors import DecodeError, MissingMember
from datapipe.index.images.header import is_image_name
from datapipe.index.media import is_video
from datapipe.index.tar.contents import named_image
from datapipe.pack.input.listing import list_folder
from datapipe.pack.input.raw_sample import Picture, RawImage, RawVideo
from datapipe.pack.records.images.fields import (
    has_image_extension,
    image_blob,
    is_image,
    is_image_struct,
    is_path,
    is_url,
    name_of_image,
)
from datapipe.pack.records.images.roots import Images
from datapipe.text.conversation import TURN_FIELDS, raw_turns
from datapipe.text.image_marks import IMAGE_PLACE, mark_places
from datapipe.text.other_media import VIDEO_PARTS, is_null
from datapipe.text.videos import VIDEO_FIELD, VIDEO_PLACE, mark_videos, video_paths_in

Record = Mapping[str, Any]
T = TypeVar("T")

_FIELDS = ("videos", "video", "mp4")
# Beside an image, these say where it comes from.
_SOURCE_FIELDS = frozenset(
    f"video_{name}{end}"
    for name in ("path", "file", "filename", "name", "url")
    for end in ("", "s")
)
_PAYLOADS = ("video", "video_url", "input_video", "url", "path")
_RATES = ("sample_fps", "fps", "raw_fps", "video_fps")
_NUMBER = re.compile(r"(\d+)", re.ASCII)
_PLACE = re.compile(f"{IMAGE_PLACE}|{VIDEO_PLACE}")


class RecordVideo(NamedTuple):
    """A video as a record has it."""

    values: tuple[Any, ...]  # its file or folder, or its frames
    name: str
    fps: float  # frames a second if it is given as frames; 0.0 if the record does not say
    is_list: bool


def take_videos(record: Record) -> tuple[Record, list[RecordVideo]]:
    """Return the record with names in the places of its videos, and these.

    `video_frames` of a record with videos is a list of their names, until their frames are known.

    Raises:
        DecodeError: videos stand both in messages and beside them.
    """
    found: list[RecordVideo] = []
    kept = dict(record)
    for field in TURN_FIELDS:
        if isinstance(turns := record.get(field), list):
            kept[field] = [_take_of_turn(turn, record, found) for turn in turns]
    beside = field_of_videos(record)
    if beside is not None:
        if found:
            raise DecodeError(f"record has videos both in its messages and in `{beside}`")
        kept[beside] = _take(record[beside], (record,), found)
    return ({**kept, VIDEO_FIELD: [video.name for video in found]} if found else record), found


def without_videos(fields: Mapping[str, T]) -> dict[str, T]:
    """Return fields, or columns, without those of videos, whose frames are no images beside."""
    named = (VIDEO_FIELD, *_FIELDS, *_SOURCE_FIELDS)
    return {n: held for n, held in fields.items() if n not in named and not _names_video(held)}


def raw_pictures(
    images: Sequence[Any], videos: Iterable[RecordVideo], files: Images, source: str
) -> tuple[Picture, ...]:
    """Return the images of a record called `source`, prefixed "", "1", "2", and its videos.

    Raises:
        SampleError: as `image_blob` does, or a video is an address.
    """
    pictures: list[Picture] = []
    for number, image in enumerate(images):
        name = source if len(images) == 1 else f"{source}[{number}]"
        pictures.append(RawImage(image_blob(image, files, name), str(number or "")))
    for video in videos:
        if is_url(video.values[0]):
            raise MissingMember(
                f"video is a URL ({video.name[:200]}), which packing does not fetch; download it "
                "first, for example with video2dataset"
            )
        frames = video.values if video.is_list else _frames_in(video.values[0], files)
        values = frames or video.values
        blobs = tuple(image_blob(value, files, video.name) for value in values)
        pictures.append(RawVideo(blobs, video.name, video.fps if frames else None))
    return tuple(pictures)


def _frames_in(value: Any, files: Images) -> Sequence[str]:
    """Return the images of a folder that a value names, by the numbers there; else nothing."""
    if (
        not isinstance(value, str)
        or not is_path(value)
        or not os.path.isdir(folder := files.path(value, os.path.isdir))
    ):
        return ()
    try:
        names = list(filter(is_image_name, list_folder(folder, strict=True).files))
    except PermissionError as error:
        raise MissingMember(f"the folder cannot be read: {error.strerror}", member=value) from error
    if not names:
        raise MissingMember("the folder holds no images", member=value)
    whole = os.path.abspath(folder)  # a relative path would start from the images' folder again
    return [os.path.join(whole, name) for name in sorted(names, key=_by_number)]


def _by_number(name: str) -> list[Any]:
    """Return a key that puts `2.jpg` before `10.jpg`."""
    return [int(p) if number % 2 else p for number, p in enumerate(_NUMBER.split(name))]


def in_order(record: Any, pictures: Sequence[Picture]) -> tuple[Any, list[Picture]]:
    """Return a record with `<video>` at each place of a video, and pictures in their order there.

    Where the text marks no places, images come first.
    """
    videos = [picture for picture in pictures if isinstance(picture, RawVideo)]
    images = [picture for picture in pictures if isinstance(picture, RawImage)]
    turns = raw_turns(record) if isinstance(record, Mapping) else None
    texts = [mark_videos(mark_places(turn.text)) for turn in turns or ()]
    marks = _PLACE.findall("".join(texts))
    if marks.count(VIDEO_PLACE) == len(videos) and marks.count(IMAGE_PLACE) == len(images):
        left: dict[str, Iterator[Picture]] = {IMAGE_PLACE: iter(images), VIDEO_PLACE: iter(videos)}
        return record, [next(left[mark]) for mark in marks]
    if not images and marks == [IMAGE_PLACE] * len(videos):  # of LLaVA-Video
        said = {field: _replaced(record[field]) for field in TURN_FIELDS if field in record}
        record = {**record, **said}
    return record, [*images, *videos]


def field_of_videos(record: Record) -> str | None:
    """Return the field of a record's videos; of one with images, only if it is called so."""
    for name in _FIELDS:
        if _holds(record.get(name)):
            return name
    if named_image(record):
        return None
    said = (name for name in record if name.lower() in _SOURCE_FIELDS and _holds(record[name]))
    named = (name for name, value in record.items() if _names_video(value))
    return next(said, None) or next(named, None)


def _names_video(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_names_video, value))
    return isinstance(value, str) and is_video(value) and is_path(value)


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return mark_places(value).replace(IMAGE_PLACE, VIDEO_PLACE)
    if isinstance(value, list):
        return [_replaced(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _replaced(item) for name, item in value.items()}
    return value


def _take_of_turn(turn: Any, record: Record, found: list[RecordVideo]) -> Any:
    """Return a turn with names in the places of the videos in its parts."""
    content = turn.get("content", turn.get("value")) if isinstance(turn, Mapping) else None
    if isinstance(content, str):
        found += [RecordVideo((p,), p, 0.0, is_list=False) for p in video_paths_in(content)]
    if not isinstance(content, list):
        return turn
    return {**turn, "content": [_take_of_part(part, record, found) for part in content]}


def _take_of_part(part: Any, record: Record, found: list[RecordVideo]) -> Any:
    if not isinstance(part, Mapping) or part.get("type", "video") not in VIDEO_PARTS:
        return part
    payload = next((name for name in _PAYLOADS if _holds(part.get(name))), None)
    if payload is None or ("type" not in part and payload != "video"):
        return part
    return {**part, payload: _take(part[payload], (part, record), found)}


def _take(value: Any, around: Sequence[Record], found: list[RecordVideo]) -> Any:
    """Add the videos of a value to `found`; return their names. `around` may have their rates."""
    if isinstance(value, Mapping) and not is_image_struct(value):
        name = next((name for name in _PAYLOADS if _holds(value.get(name))), None)
        if name is not None:
            return {**value, name: _take(value[name], (value, *around), found)}
    rates = (at.get(name) for at in around for name in _RATES)
    fps = next((float(r) for r in rates if isinstance(r, int | float) and r > 0), 0.0)
    if isinstance(value, list | tuple):
        if not value or not all(has_image_extension(v) or is_image(v) for v in value):
            return [_take(item, around, found) for item in value]
        names = [name_of_image(frame, number, "frame") for number, frame in enumerate(value)]
        found.append(RecordVideo(tuple(value), names[0], fps, is_list=True))
        return names
    name = name_of_image(value, len(found), "video")
    found.append(RecordVideo((value,), name, fps, is_list=False))
    return name


def _holds(value: Any) -> bool:
    return not is_null(value) and value not in ("", [], ())
