"""What counts as the text of a sample, whichever of the common layouts it is kept in.

`<image>` marks the place of an image in a text. A text has as many of them as its sample has
images, in the images' order; or it has none, and then all images come before the text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from datapipe.errors import DecodeError

TEXT_EXTENSIONS = frozenset({"txt", "text", "caption"})
"""Extensions of members that hold a caption as plain UTF-8 text."""

IMAGE_PLACE = "<image>"
"""Marks the place of an image in a text, as LLaVA and LLaMA-Factory write it."""

_CAPTION_FIELDS = ("caption", "text")
# Types of content parts in OpenAI's Chat Completions and Responses, and in Hugging Face's chat
# templates. Qwen-VL also writes parts without a type: {"image": ...}, {"text": ...}.
_TEXT_PARTS = ("text", "input_text", "output_text")
_IMAGE_PARTS = ("image", "image_url", "input_image")


def parse_text(data: bytes) -> str:
    """Decode a caption member (UTF-8, with or without a byte order mark)."""
    try:
        # As "utf-8-sig" does, which is written in Python and takes ten times as long.
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DecodeError(f"text is not UTF-8 at byte {error.start}") from error


def parse_json(data: bytes) -> Any:
    """Decode a JSON member."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not valid JSON: {error}") from error


def conversation(record: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """The turns of a record as (role, text), or None where it holds no conversation.

    Understands

    - LLaVA and ShareGPT: `conversations: [{from, value}]`;
    - OpenAI, Hugging Face and LLaMA-Factory: `messages: [{role, content}]`, where content is a
      string or a list of parts. Parts follow each other without a separator, as chat templates
      write them; an image part is `<image>`, what is neither image nor text is left out. A turn
      that only calls tools has an empty text; the calls stay in the record.
    - The Cauldron and FineVision: `texts: [{user, assistant}]`, as turns of `user` and `assistant`.

    No `<image>` is added where a record marks no places: all its images come first.
    """
    for turns in (
        _turns(record.get("conversations"), _sharegpt_turn),
        _turns(record.get("messages"), _message),
    ):
        if turns is not None:
            return turns
    texts: Any = record.get("texts")
    if is_question_list(texts):
        return [(role, text[role]) for text in texts for role in ("user", "assistant")]
    return None


def interleaved(record: Mapping[str, Any]) -> list[str | None] | None:
    """The texts of a document, with None at the places of its images; None where it is no document.

    Understands OBELICS: lists `texts` and `images` of equal length that are not null in turn.
    """
    texts: Any = record.get("texts")
    images: Any = record.get("images")
    if not is_document(texts, images) or misplaced(texts, images) is not None:
        return None
    return list(texts)


def sample_text(caption: str | None, record: Any) -> str:
    """The text of a sample: its caption, else its conversation, its document, or a caption field.

    A conversation is written as one `role: text` line per turn, which is how it reads where no
    tokenizer and template are given. The pieces of a document, `<image>` for each image among them,
    are separated by an empty line, as paragraphs are. Of several `captions` it is the first.
    """
    if caption is not None:
        return caption
    if not isinstance(record, Mapping):
        return ""
    if (turns := conversation(record)) is not None:
        return "\n".join(f"{role}: {text}" if role else text for role, text in turns)
    if (document := interleaved(record)) is not None:
        return "\n\n".join(IMAGE_PLACE if text is None else text for text in document)
    for field in _CAPTION_FIELDS:
        if isinstance(record.get(field), str):
            return str(record[field])
    captions = record.get("captions")
    if isinstance(captions, list) and captions and isinstance(captions[0], str):
        return captions[0]
    return ""


def part_kind(part: Any) -> str:
    """What a part of a message's content is: "text", "image", or the type it gives itself."""
    if isinstance(part, str):
        return "text"
    if not isinstance(part, Mapping):
        return type(part).__name__
    kind = part.get("type")
    if kind is None:
        fields = [name for name in ("text", *_IMAGE_PARTS) if part.get(name) is not None]
        kind = fields[0] if len(fields) == 1 else "without a type"
    if not isinstance(kind, str):
        return type(kind).__name__
    return "text" if kind in _TEXT_PARTS else "image" if kind in _IMAGE_PARTS else kind


def message_text(message: Mapping[str, Any]) -> str | None:
    """The text of one message, `<image>` for each image part in it; None if it makes no sense."""
    content = message.get("content")
    if content is None:
        return "" if message.get("tool_calls") or message.get("function_call") else None
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = [_part_text(part) for part in content]
    return None if None in texts else "".join(text for text in texts if text)


def is_question_list(texts: Any) -> bool:
    """Whether `texts` are questions and answers, as in The Cauldron."""
    return isinstance(texts, list) and bool(texts) and all(map(_is_question, texts))


def is_document(texts: Any, images: Any) -> bool:
    """Whether `texts` and `images` are lists over the same places, as in OBELICS."""
    return (
        isinstance(texts, list)
        and isinstance(images, list)
        and 0 < len(texts) == len(images)
        and all(text is None or isinstance(text, str) for text in texts)
    )


def misplaced(texts: Sequence[Any], images: Sequence[Any]) -> int | None:
    """The first place that holds both a text and an image, or neither."""
    for place, (text, image) in enumerate(zip(texts, images, strict=True)):
        if (text is None) == (image is None):
            return place
    return None


def _is_question(text: Any) -> bool:
    return isinstance(text, Mapping) and all(
        isinstance(text.get(role), str) for role in ("user", "assistant")
    )


def _turns(
    turns: Any, read: Callable[[Mapping[str, Any]], tuple[str, str] | None]
) -> list[tuple[str, str]] | None:
    if not isinstance(turns, list):
        return None
    pairs = [read(turn) if isinstance(turn, Mapping) else None for turn in turns]
    understood = [pair for pair in pairs if pair is not None]
    return understood if len(understood) == len(turns) else None


def _sharegpt_turn(turn: Mapping[str, Any]) -> tuple[str, str] | None:
    text = turn.get("value")
    return (_role(turn.get("from")), text) if isinstance(text, str) else None


def _message(message: Mapping[str, Any]) -> tuple[str, str] | None:
    text = message_text(message)
    return None if text is None else (_role(message.get("role")), text)


def _role(role: Any) -> str:
    return role if isinstance(role, str) else ""


def _part_text(part: Any) -> str | None:
    kind = part_kind(part)
    if kind == "image":
        return IMAGE_PLACE
    if kind != "text":
        return "" if isinstance(part, Mapping) else None
    text = part if isinstance(part, str) else part.get("text")
    return text if isinstance(text, str) else None
