"""What counts as the text of a sample, whichever of the common layouts it is kept in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from datapipe.errors import DecodeError

TEXT_EXTENSIONS = frozenset({"txt", "text", "caption"})
"""Extensions of members that hold a caption as plain UTF-8 text."""

_CAPTION_FIELDS = ("caption", "text")


def parse_text(data: bytes) -> str:
    """Decode a caption member (UTF-8, with or without a byte order mark)."""
    try:
        return data.decode("utf-8-sig")
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

    Understands LLaVA and ShareGPT (`conversations: [{from, value}]`) and OpenAI-style chats whose
    content is a string (`messages: [{role, content}]`).
    """
    for field, role_name, text_name in (
        ("conversations", "from", "value"),
        ("messages", "role", "content"),
    ):
        turns = record.get(field)
        if isinstance(turns, list) and all(
            isinstance(turn, Mapping) and isinstance(turn.get(text_name), str) for turn in turns
        ):
            return [(str(turn.get(role_name, "")), turn[text_name]) for turn in turns]
    return None


def sample_text(caption: str | None, record: Any) -> str:
    """The text of a sample: its caption, else its conversation, else a caption field.

    A conversation is written as one `role: text` line per turn, which is how it reads where no
    tokenizer and template are given.
    """
    if caption is not None:
        return caption
    if isinstance(record, Mapping):
        turns = conversation(record)
        if turns is not None:
            return "\n".join(f"{role}: {text}" if role else text for role, text in turns)
        for field in _CAPTION_FIELDS:
            if isinstance(record.get(field), str):
                return str(record[field])
    return ""
