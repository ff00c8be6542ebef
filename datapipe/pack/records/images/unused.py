"""Images of a record that its sample does not have: masks, depth maps, images after an edit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from datapipe.pack.records.images.fields import (
    image_list,
    image_name,
    is_image,
    is_image_struct,
    is_url,
    may_be_encoded,
    may_be_path,
    says_image,
)
from datapipe.text.conversation import turns_in
from datapipe.text.image_marks import IMAGE_PLACE, mark_all

_MAX_DEPTH = 4
_MOST_ITEMS = 8  # of a list
_NAME_FIELD = re.compile(r"(id|key|name|file|index)$", re.IGNORECASE)


def unused_images(record: Mapping[str, Any], images: Sequence[Any]) -> list[str]:
    """Return the fields, as `--map` takes them, that hold or name images other than `images`.

    Fields that name an image of the sample again do not count, such as `file_name` with the image's
    bytes, or the address that it was fetched from.

    Examples:
        >>> unused_images({"image": "rgb/0.png", "depth": "depth/0.png"}, ["rgb/0.png"])
        ['depth']
        >>> unused_images({"image": "rgb/0.png", "file_name": "0.png"}, ["rgb/0.png"])
        []
    """
    taken = {id(image) for image in images}
    names = [name for image in images if isinstance(name := image_name(image), str)]
    held = any(is_image(image) for image in images)
    found: dict[str, None] = {}
    for field, value in record.items():
        if not value:
            continue
        inside = [path for path, image in _held(value, str(field)) if id(image) not in taken]
        named_again = held and (says_image(field) or _NAME_FIELD.search(field))
        if not inside and not named_again:
            inside = [field for path in _paths(value) if not _is_one_of(path, names)]
        found |= dict.fromkeys(inside)
    return list(found)


def said_of_unused(record: Mapping[str, Any], images: Sequence[Any]) -> str:
    """Return the part of an error about other images of a conversation; "" if there are none."""
    found = unused_images(record, images)
    if not found:
        return ""
    remedy = map_of_turns(record, images, found[0])
    taken = f", which --map '{remedy}' takes too" if remedy else ""
    return f"; others are in `{found[0]}`{taken}"


def map_of_turns(record: Mapping[str, Any], images: Sequence[Any], field: str) -> str:
    """Return the map of a conversation with `images` that takes those of another field too.

    It is "" if the text marks the places of its images and has none for those of the field.
    """
    chat, turns = turns_in(record)
    held = [(name, image_list(value)) for name, value in record.items() if value]
    taken = [name for name, (first, *_) in held if any(first is image for image in images)]
    if not turns or (images and not taken):  # the images stand in the turns
        return ""
    further = len(image_list(record[field])) if field in record else 1
    texts = mark_all([turn.text for turn in turns], len(images))
    places = sum(text.count(IMAGE_PLACE) for text in texts)
    if places and places != len(images) + further:
        return ""
    return ",".join([*(f"image={name}" for name in (*taken, field)), f"messages={chat}"])


def _is_one_of(path: str, names: Sequence[str]) -> bool:
    """Return whether a path is that of an image; either may begin at a folder further up."""
    pairs = [(f"/{path}", f"/{name}") for name in names]
    return any(one.endswith(other) or other.endswith(one) for one, other in pairs)


def _paths(value: Any) -> Iterator[str]:
    for item in value[:_MOST_ITEMS] if isinstance(value, list | tuple) else (value,):
        if isinstance(item, str) and may_be_path(item) and not is_url(item):
            yield item


def _held(value: Any, path: str, depth: int = _MAX_DEPTH) -> list[tuple[str, Any]]:
    """Return images that a value holds as bytes, structs or base64, with their paths, in order."""
    if isinstance(value, str):
        return [(path, value)] if may_be_encoded(value) and is_image(value) else []
    if isinstance(value, bytes | bytearray | memoryview) or is_image_struct(value):
        return [(path, value)] if is_image(value) else []
    found: list[tuple[str, Any]] = []
    if depth and isinstance(value, list | tuple):
        for item in value[:_MOST_ITEMS]:
            is_object = isinstance(item, Mapping) and not is_image_struct(item)
            found += _held(item, f"{path}[*]" if is_object else path, depth - 1)
    elif depth and isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(item, str) or may_be_encoded(item):  # most are words, as in turns
                found += _held(item, f"{path}.{name}", depth - 1)
    return found
