"""Records that hold a conversation: their images, wherever these stand, and what is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from datapipe.errors import DecodeError, MissingMember, SampleError
from datapipe.pack.records.images.fields import (
    NOT_FETCHED,
    are_numbered,
    columns_of_record,
    image_columns,
    image_list,
    name_of_image,
    numbered_beside,
    url_columns,
    with_names,
)
from datapipe.pack.records.images.unused import said_of_unused
from datapipe.pack.records.videos import without_videos
from datapipe.report.table import counted
from datapipe.text.conversation import (
    TURN_FIELDS,
    check_message,
    conversation,
    part_kind,
    read_turns,
)
from datapipe.text.image_marks import IMAGE_PLACE, mark_places, numbers_in, paths_in
from datapipe.text.other_media import is_null
from datapipe.text.videos import VIDEO_FIELD

# Fields of a part that may hold its image: of OpenAI, Qwen-VL, Hugging Face, Axolotl, Anthropic.
_PAYLOADS = ("image_url", "image", "url", "path", "base64", "image_base64", "data", "source")
_WRAPPED = ("url", "data", "source")  # of OpenAI, Anthropic, Amazon Bedrock: {format, source}
_TEXTS = ("value", "content")
_PREFERENCES = ("chosen", "rejected", "chosen_response", "rejected_response")
_VERDICTS = ("kto_tag", "label")  # of LLaMA-Factory and TRL: false is what must not be learnt

Record = Mapping[str, Any]


def unpack_turns(record: Record, field: str) -> tuple[list[Any], Record]:
    """Return the images of a conversation, in order, and the record with names in their places.

    Images stand in parts of a message, in `images` or `image` beside the turns, or as
    `<img>PATH</img>` in a text. `field` of the record holds the turns.

    Raises:
        SampleError: the record is no conversation, or one that a loader would refuse: a role that
            is not known, sound or video, or other images than places for them. Of a preference
            pair, which cannot be learnt as it stands, the reason names the remedy.
    """
    try:
        return _unpacked(record, field, numbered=True)
    except DecodeError:
        try:  # `image_2` beside `image` may be of another use, where the text has one place
            return _unpacked(record, field, numbered=False)
        except SampleError:
            pass
        raise


def _unpacked(record: Record, field: str, *, numbered: bool) -> tuple[list[Any], Record]:
    """Unpack turns; `numbered` takes columns that are numbered like that of the images, too."""
    turns = record.get(field)
    if not isinstance(turns, list) or not turns:
        raise MissingMember(f"record has no `{field}`")
    refuse_preferences(record, field)
    for number, turn in enumerate(turns, 1):
        check_message(turn, f"turn {number} of `{field}`", videos=VIDEO_FIELD in record)
    contents = [turn["content"] for turn in turns if isinstance(turn.get("content"), list)]
    parts = [part for content in contents for part in content if part_kind(part) == "image"]
    unfilled = [part for part in parts if not _filled(part)]
    in_parts: list[Any] = []
    turns = [_named(turn, in_parts) for turn in turns]
    named = [path for turn in turns for path in _paths(turn)]
    # Where the turns hold images, others are not looked for under other names: they may be masks.
    by_name = not (in_parts or named)
    listed, kept = _images_beside(record, by_name=by_name, numbered=numbered)
    if in_parts and listed:
        raise DecodeError("record has images both in its messages and beside them")
    if in_parts and unfilled:
        raise DecodeError(
            f"{counted(len(in_parts), 'part')} with an image, {len(unfilled):,} without"
        )
    for number, part in enumerate(unfilled):
        if isinstance(part.get("index"), int) and part["index"] != number:
            raise DecodeError(f"image part {number} asks for image {part['index']}")
    images = in_parts or listed or named
    images, turns = _in_order(images, turns)
    kept = {**kept, field: turns}
    for first in TURN_FIELDS[: TURN_FIELDS.index(field)]:  # a loader would take the other turns
        if read_turns(kept.get(first)) and read_turns(turns):
            kept |= {first: turns, field: kept[first]}
            break
    if VIDEO_FIELD in kept:
        return images, kept  # how many places there are is known with the frames
    read = conversation(kept, images=len(images))
    if read is None:
        raise DecodeError(f"`{field}` holds a turn that is not understood")
    places = sum(turn.text.count(IMAGE_PLACE) for turn in read)
    if places and places != len(images):
        others = said_of_unused(record, images)
        marks, held = counted(places, f"{IMAGE_PLACE} place"), counted(len(images), "image")
        raise DecodeError(f"{marks} for {held}{others}")
    return images, kept


def has_images(turns: Any) -> bool:
    """Return whether turns hold or name images; DecodeError if a part has several."""
    found: list[Any] = []
    for turn in turns if isinstance(turns, list) else ():
        if isinstance(turn, Mapping):
            _named(turn, found)
            found += _paths(turn)
    return bool(found)


def _paths(turn: Record) -> list[str]:
    """Return the paths of images that the text of a turn names."""
    text = turn.get("value", turn.get("content"))
    return paths_in(text) if isinstance(text, str) else []


def refuse_preferences(record: Record, field: str) -> None:
    """Refuse a record that says which of two answers is better, or that its answer is a bad one."""
    named = [name for name in _PREFERENCES if record.get(name)]
    if len(named) > 1:
        held = {name: value for name, value in record.items() if value is not None}
        parts = [f"image={name}" for name in image_columns(columns_of_record(held))]
        remedy = ",".join([*parts, f"messages={field}", f"assistant={named[0]}"])
        raise DecodeError(
            f"record is a preference pair ({', '.join(f'`{name}`' for name in named)}); --format "
            f"preference packs both answers, and to train on the better one alone: --map '{remedy}'"
        )
    refuse_bad_answer(record)


def refuse_bad_answer(record: Record, read: Collection[str] = ()) -> None:
    """Refuse a record that says that its answer is a bad one, by a field that is not `read`."""
    for name in _VERDICTS:
        if name not in read and record.get(name) is False:
            raise DecodeError(f"record says by `{name}: false` that its answer is a bad one")


def _images_beside(record: Record, *, by_name: bool, numbered: bool) -> tuple[list[Any], Record]:
    """Return the images beside the text of a record, and the record with names in their places.

    They stand in `images` or `image`; where it has neither, and `by_name` is given, in the field
    whose name or values say so, such as `img_path`.
    """
    fields = [name for name in ("images", "image") if not is_null(record.get(name))]
    if by_name and not ("images" in record or "image" in record):
        fields = _image_fields(record)
    if by_name and numbered and fields:
        fields = numbered_beside(columns_of_record(record), fields)
    values = {name: _as_list(record[name]) for name in fields}
    held = {name: images for name, value in values.items() if (images := image_list(value))}
    if not held:
        return [], record
    if not are_numbered(held):
        both = " and in ".join(f"`{name}`" for name in held)
        raise DecodeError(f"record has images both in {both}")
    images = [image for found in held.values() for image in found]
    return images, with_names({**record, **{name: values[name] for name in held}}, images)


def _image_fields(record: Record) -> list[str]:
    columns = columns_of_record(without_videos(record) if VIDEO_FIELD in record else record)
    fields = [name for name in image_columns(columns) if columns[name]]
    if not fields and (urls := url_columns(columns)):
        raise MissingMember(f"the image seems to be a URL (`{urls[0]}`), {NOT_FETCHED}")
    return fields


def _as_list(value: Any) -> Any:
    """Return the images of an object keyed by marks in the text, else the value itself."""
    if not isinstance(value, Mapping) or not value:
        return value
    if all(isinstance(mark, str) and mark_places(mark) == IMAGE_PLACE for mark in value):
        return [value[mark] for mark in sorted(value)]
    return value


def _in_order(
    images: list[Any], turns: list[Mapping[str, Any]]
) -> tuple[list[Any], list[Mapping[str, Any]]]:
    """Return the images in the order of the numbered marks, and the turns with plain marks.

    MMMU names images in any order, and the same one twice, which then is there twice.
    """
    keys = [next((k for k in _TEXTS if isinstance(turn.get(k), str)), None) for turn in turns]
    texts = [turn[key] if key else "" for turn, key in zip(turns, keys, strict=True)]
    numbers = numbers_in(texts)
    if not numbers or not images:
        return images, turns
    first = 0 if 0 in numbers else 1
    wanted = [number - first for number in numbers]
    if wanted == list(range(len(images))) or sorted({*wanted}) != list(range(len(images))):
        return images, turns  # in order, or wrong: then the loader's own check says how
    plain = [
        {**turn, key: mark_places(turn[key])} if key else turn
        for turn, key in zip(turns, keys, strict=True)
    ]
    return [images[number] for number in wanted], plain


def _named(turn: Mapping[str, Any], images: list[Any]) -> Mapping[str, Any]:
    """Return the turn with names for its images, which are added to `images`.

    They stand in the parts of its content, or in a list of its own, as DeepSeek-VL2 has them.
    """
    content, listed = turn.get("content"), turn.get("images")
    if isinstance(content, list):
        parts = []
        for part in content:
            fields = _filled(part) if part_kind(part) == "image" else []
            if len(fields) > 1:
                raise DecodeError(f"an image part has several images: {', '.join(fields)}")
            for field in fields:
                part = {**part, field: _name(part[field], images)}
            parts.append(part)
        return {**turn, "content": parts}
    if isinstance(listed, list):
        return {**turn, "images": [_name(image, images) for image in listed]}
    return turn


def _name(value: Any, images: list[Any]) -> Any:
    """Return what a part says of its image, named; the image itself joins `images`."""
    if isinstance(value, Mapping):
        for field in _WRAPPED:
            if not is_null(value.get(field)):
                return {**value, field: _name(value[field], images)}
    images.append(value)
    return name_of_image(value, len(images) - 1)


def _filled(part: Mapping[str, Any]) -> list[str]:
    return [
        field
        for field in _PAYLOADS
        if not is_null(part.get(field)) and (field != "source" or isinstance(part[field], Mapping))
    ]
