"""Records of preference pairs: a prompt with a chosen and a rejected answer.

The record of a sample has them as lists of messages, `prompt`, `chosen` and `rejected`, whatever
the layout was. `datapipe.text.preference` lists the layouts.
"""

from __future__ import annotations

from typing import Any

from datapipe.errors import DecodeError
from datapipe.pack.records.fields.turns import has_images, unpack_turns
from datapipe.pack.records.reader import Record, RecordReader
from datapipe.text.preference import ANSWERS, has_answers, read_pair, without_turns


def is_preference(record: Any) -> bool:
    """Return whether a record has a prompt and two answers; never raises."""
    try:
        return has_answers(record) and read_pair(record) is not None
    except (DecodeError, RecursionError):
        return False


def _unpack(record: Record) -> tuple[list[Any], Record]:
    pair = read_pair(record) if has_answers(record) else None
    if pair is None:
        raise DecodeError("record has no `chosen` and `rejected` answer")
    for name, answer in zip(ANSWERS, (pair.chosen, pair.rejected), strict=True):
        if has_images(answer):
            raise DecodeError(f"the `{name}` answer has an image; images belong to the prompt")
    rest = {name: value for name, value in without_turns(record).items() if name != "prompt"}
    images, kept = unpack_turns({**rest, "messages": [*pair.prompt, *pair.chosen]}, "messages")
    kept = dict(kept)
    turns = kept.pop("messages")
    prompt, chosen = turns[: len(pair.prompt)], turns[len(pair.prompt) :]
    return images, {**kept, "prompt": prompt, "chosen": chosen, "rejected": pair.rejected}


READER = RecordReader(
    name="preference",
    summary="TRL / RLAIF-V / LLaMA-Factory: a prompt with a chosen and a rejected answer",
    what="`chosen` and `rejected` answers",
    fits=is_preference,
    unpack=_unpack,
)
