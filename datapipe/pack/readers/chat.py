"""Chats as OpenAI, Hugging Face and LLaMA-Factory keep them: records with `messages`.

The layouts differ in where images stand. OpenAI and Qwen put each into its part of a message's
content (https://platform.openai.com/docs/guides/images-vision); LLaMA-Factory keeps them in a list
`images`, and `<image>` in the texts marks their places; TRL and SmolVLM keep `images` too, with a
part `{type: image}` at each place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datapipe.errors import DecodeError, MissingMember
from datapipe.index.text import conversation, message_text, part_kind
from datapipe.pack.records.reader import (
    Record,
    RecordReader,
    check_places,
    is_null,
    name_of_image,
    take_images,
)

_PAYLOADS = ("image_url", "image", "url", "path")  # fields of a part that may hold its image
_UNSUPPORTED = ("videos", "audios", "video", "audio")


def fits(record: Any) -> bool:
    """Whether a record has a list of messages."""
    return isinstance(record, Mapping) and isinstance(record.get("messages"), list)


def unpack(record: Record) -> tuple[list[Any], Record]:
    """The images of a chat, in order, and the record with names in their places.

    Raises:
        SampleError: the record is no chat, or has sound or video, or other images than places.
    """
    messages = record.get("messages")
    if not isinstance(messages, list) or not messages:
        raise MissingMember("record has no `messages`")
    for field in _UNSUPPORTED:
        if record.get(field) and not is_null(record[field]):
            raise DecodeError(f"record has `{field}`; only text and images are supported")
    for number, message in enumerate(messages):
        _check(number, message)
    in_parts: list[Any] = []
    messages = [_named(message, in_parts) for message in messages]
    listed, kept = take_images(record)
    if in_parts and listed:
        raise DecodeError("record has images both in its messages and beside them")
    unfilled = [part for message in messages for part in _image_parts(message) if not _filled(part)]
    if in_parts and unfilled:
        raise DecodeError(
            f"{len(in_parts)} parts have an image of their own, {len(unfilled)} have none"
        )
    for number, part in enumerate(unfilled):
        if isinstance(part.get("index"), int) and part["index"] != number:
            raise DecodeError(f"image part {number} asks for image {part['index']}")
    images = in_parts or listed
    check_places([text for _, text in conversation(record) or ()], len(images))
    return images, {**kept, "messages": messages}


def _check(number: int, message: Any) -> None:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise DecodeError(f"message {number} is no object with a `role` of text")
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        kind = part_kind(part)
        if kind not in ("text", "image"):
            raise DecodeError(
                f"message {number} has a part ({kind[:80]}) that is neither text nor image; "
                "nothing else is supported"
            )
    if message_text(message) is None:
        raise DecodeError(f"`content` of message {number} is neither text nor a list of parts")


def _image_parts(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return [part for part in parts if part_kind(part) == "image"]


def _named(message: Mapping[str, Any], images: list[Any]) -> Mapping[str, Any]:
    """The message with names for its images, which are added to `images`."""
    if not any(map(_filled, _image_parts(message))):
        return message
    parts = []
    for part in message["content"]:
        fields = _filled(part) if part_kind(part) == "image" else []
        if len(fields) > 1:
            raise DecodeError(f"an image part has several images: {', '.join(fields)}")
        for field in fields:
            value = part[field]
            wrapped = isinstance(value, Mapping) and "url" in value
            image = value["url"] if wrapped else value
            name = name_of_image(image, len(images))
            images.append(image)
            part = {**part, field: {**value, "url": name} if wrapped else name}
        parts.append(part)
    return {**message, "content": parts}


def _filled(part: Mapping[str, Any]) -> list[str]:
    """Fields of an image part that hold an image."""
    return [field for field in _PAYLOADS if not is_null(part.get(field))]


READER = RecordReader(
    name="chat",
    summary="OpenAI / Hugging Face / LLaMA-Factory chats: messages, images in them or beside them",
    what="`messages`",
    fits=fits,
    unpack=unpack,
)
