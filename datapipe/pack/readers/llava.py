"""LLaVA and ShareGPT: records with `conversations`, and `image` or `images`.

LLaVA, ShareGPT4V and LLaVA-OneVision name the field `image`; LLaMA-Factory's ShareGPT layout has a
list `images`. What else a record has (`id`, `system`, `tools`) is kept in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datapipe.errors import DecodeError, MissingMember
from datapipe.pack.records.reader import Record, RecordReader, check_places, take_images


def fits(record: Any) -> bool:
    """Whether a record has a list of conversation turns."""
    return isinstance(record, Mapping) and isinstance(record.get("conversations"), list)


def unpack(record: Record) -> tuple[list[Any], Record]:
    """The images of a conversation, in order, and the record with names in their places.

    Raises:
        SampleError: the record is no conversation, or has other images than places for them.
    """
    turns = record.get("conversations")
    if not isinstance(turns, list) or not turns:
        raise MissingMember("record has no `conversations`")
    if not all(isinstance(t, Mapping) and isinstance(t.get("value"), str) for t in turns):
        raise DecodeError("a turn is no object with a `value` of text")
    images, rest = take_images(record)
    check_places([turn["value"] for turn in turns], len(images))
    return images, rest


READER = RecordReader(
    name="llava",
    summary="LLaVA / ShareGPT: image or images, and conversations of {from, value}",
    what="`conversations`",
    fits=fits,
    unpack=unpack,
)
