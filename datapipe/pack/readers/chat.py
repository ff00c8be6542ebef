"""Chats as OpenAI, Hugging Face, ms-swift, XTuner, Mantis and LLaMA-Factory keep them.

The layouts differ in where images stand. OpenAI and Qwen put each into its part of a message's
content (https://platform.openai.com/docs/guides/images-vision); LLaMA-Factory keeps them in a list
`images`, and `<image>` in the texts marks their places; TRL and SmolVLM keep `images` too, with a
part `{type: image}` at each place. Mantis and XTuner call the turns `conversation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datapipe.index.conversation import TURN_FIELDS, read_turns
from datapipe.pack.records.reader import Record, RecordReader
from datapipe.pack.records.turns import unpack_turns

_FIELDS = tuple(name for name in TURN_FIELDS if name not in ("conversations", "messages", "texts"))


def fits(record: Any) -> bool:
    """Whether a record has a list of messages."""
    return isinstance(record, Mapping) and _field(record) is not None


def unpack(record: Record) -> tuple[list[Any], Record]:
    """Return the images of a chat, in order, and the record with names in their places.

    Raises:
        SampleError: as `unpack_turns` does.
    """
    return unpack_turns(record, _field(record) or "messages")


def _field(record: Record) -> str | None:
    if isinstance(record.get("messages"), list):
        return "messages"
    return next((name for name in _FIELDS if read_turns(record.get(name))), None)


READER = RecordReader(
    name="chat",
    summary="OpenAI / Hugging Face / ms-swift / XTuner chats: messages, images in them or beside",
    what="`messages`",
    fits=fits,
    unpack=unpack,
)
