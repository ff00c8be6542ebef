"""Preference pairs: a prompt with a chosen and a rejected answer, in the layouts that records have.

- `prompt`, `chosen`, `rejected`: texts or lists of messages (TRL, RLAIF-V as TRL has it).
- `question`, `chosen`, `rejected`: texts (RLAIF-V, SPA-VL); Alpaca's `instruction` and `input`.
- `chosen`, `rejected`: whole conversations, whose common beginning is the prompt (TRL).
- `conversations` or `messages`, and the two answers as one message each (LLaMA-Factory).
- `messages` with the chosen answer as its end, and `rejected_response` or, as a whole conversation,
  `rejected_messages` (ms-swift); `conversations` and `rejected_conversations` (POVID, MMedPO).

Sources: https://huggingface.co/docs/trl/dataset_formats, .../datasets/openbmb/RLAIF-V-Dataset,
https://github.com/hiyouga/LLaMA-Factory/blob/main/data/README.md, ms-swift's Custom-dataset.md,
https://huggingface.co/datasets/YiyangAiLab/POVID_preference_data_for_VLLMs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from datapipe.errors import DecodeError
from datapipe.text.conversation import TURN_FIELDS, has_words, known_role, read_turns

ANSWERS = ("chosen", "rejected")
_NAMES = {
    name: (name, *(f"{name}_{part}" for part in ("response", "messages", "conversations")))
    for name in ANSWERS
}
_ASKED = ("prompt", "question", "query", "instruction", "problem", "input")

Record = Mapping[str, Any]
Messages = list[Record]


class Pair(NamedTuple):
    """A preference pair, as messages in the record's own words."""

    prompt: Messages
    chosen: Messages
    rejected: Messages


def has_answers(record: Any) -> bool:
    """Return whether a record has a chosen and a rejected answer."""
    return isinstance(record, Mapping) and None not in _answers(record).values()


def read_pair(record: Record) -> Pair | None:
    """Return the preference pair of a record, or None if it has no two answers.

    Raises `DecodeError` if an answer is empty or not understood, or nothing is asked.

    Examples:
        >>> read_pair({"question": "What?", "chosen": "A cat.", "rejected": "A dog."}).prompt
        [{'role': 'user', 'content': 'What?'}]
    """
    answers = _answers(record)
    if answers["rejected"] is None:
        return None
    turns = _turns_of(record)
    start = _answer_at(turns)
    if answers["chosen"] is None and start == len(turns):
        return None
    rejected = _as_messages("rejected", answers["rejected"])
    if answers["chosen"] is None and not _is_asked(rejected[0]):  # the chosen one ends the turns
        prompt, chosen = turns[:start], turns[start:]
    else:
        chosen = turns if answers["chosen"] is None else _as_messages("chosen", answers["chosen"])
        if _is_asked(chosen[0]) and _is_asked(rejected[0]):
            pairs = zip(chosen, rejected, strict=False)
            least = min(len(chosen), len(rejected)) - 1  # of equal answers, the last turn counts
            same = next((n for n, (one, other) in enumerate(pairs) if one != other), least)
            prompt, chosen, rejected = chosen[:same], chosen[same:], rejected[same:]
        else:
            prompt = _asked(record) or turns
            if _said(prompt[_answer_at(prompt) :]) == _said(chosen):  # as a map to it has left it
                prompt = prompt[: _answer_at(prompt)]
    if not prompt:
        raise DecodeError(
            "the pair has no prompt: nothing is asked before its `chosen` and `rejected` answers; "
            "name it `prompt`, as a text or a list of messages"
        )
    if _answer_at(prompt) < len(prompt):
        raise DecodeError(
            "the prompt of the pair ends with an answer that is not its `chosen` one; end it with "
            "the user's turn"
        )
    for name, answer in zip(ANSWERS, (chosen, rejected), strict=True):
        if not any(has_words(text) for text in _said(answer)):
            raise DecodeError(f"the `{name}` answer of the pair is empty")
        if _is_asked(answer[0]):
            raise DecodeError(f"the `{name}` answer of the pair begins with the user's turn")
    return Pair(prompt, chosen, rejected)


def refuse_unread_pair(record: Record) -> None:
    """Raise `DecodeError` if a record without a text has answers that make no pair."""
    if has_answers(record):
        read_pair(record)
    elif record.keys() >= {*ANSWERS} and any(
        isinstance(record[name], str | list) and record[name] for name in ANSWERS
    ):
        raise DecodeError("one of the answers `chosen` and `rejected` is empty; a pair has both")


def pair_records(record: Record) -> tuple[Record, Record] | None:
    """Return a record as two conversations, with the chosen and with the rejected answer, or None.

    Only the answers are learnt: turns of the prompt are marked as not. Raises as `read_pair` does.
    """
    pair = read_pair(record)
    if pair is None:
        return None
    rest = without_turns(record)
    asked = [{**turn, "weight": 0} for turn in pair.prompt]
    chosen, rejected = (
        {**rest, "messages": [*asked, *answer]} for answer in (pair.chosen, pair.rejected)
    )
    return chosen, rejected


def prompt_record(record: Record) -> Record:
    """Return a record whose turns are the prompt of its pair, or its own; itself if it has none.

    Raises as `read_pair` does.
    """
    pair = read_pair(record) if has_answers(record) else None
    messages = _asked(record) if pair is None and not _turns_of(record) else None
    messages = messages if pair is None else pair.prompt
    return {**without_turns(record), "messages": messages} if messages else record


def pair_text(record: Any) -> str:
    """Return the text of a pair, a `role: text` line per turn; "" if it is none. Never raises."""
    with suppress(DecodeError):
        if has_answers(record) and (pair := read_pair(record)) is not None:
            asked = read_turns(pair.prompt) or ()
            lines = [f"{known_role(turn.role) or turn.role}: {turn.text}" for turn in asked]
            for name, answer in zip(ANSWERS, (pair.chosen, pair.rejected), strict=True):
                lines += [f"{name}: {text}" for text in _said(answer)]
            return "\n".join(lines)
    return ""


def without_turns(record: Record) -> dict[str, Any]:
    """Return the fields of a record that are neither its turns nor its two answers."""
    left_out = {*TURN_FIELDS, *(name for names in _NAMES.values() for name in names)}
    return {name: value for name, value in record.items() if name not in left_out}


def ends_with_answer(record: Record) -> bool:
    """Return whether the turns of a record end with the assistant's."""
    turns = _turns_of(record)
    return _answer_at(turns) < len(turns)


def _answers(record: Record) -> dict[str, Any]:
    """Return the chosen and the rejected answer as the record has them; None where it has none."""
    return {
        name: next((record[each] for each in names if record.get(each)), None)
        for name, names in _NAMES.items()
    }


def _as_messages(name: str, answer: Any) -> Messages:
    if isinstance(answer, str):
        return [{"role": "assistant", "content": answer}]
    messages = [answer] if isinstance(answer, Mapping) else answer
    if read_turns(messages) is None:
        raise DecodeError(f"`{name}` is neither a text nor a list of messages")
    return list(messages)


def _asked(record: Record) -> Messages | None:
    texts = []
    for name in _ASKED:
        value = record.get(name)
        if isinstance(value, list | Mapping) and value:
            turns = [value] if isinstance(value, Mapping) else value
            return list(turns) if read_turns(turns) else None
        if isinstance(value, str) and value.strip():
            texts.append(value)
            if name != "instruction":  # of Alpaca, whose `input` is more of it
                break
    return [{"role": "user", "content": "\n".join(texts)}] if texts else None


def _turns_of(record: Record) -> Messages:
    return next((list(record[name]) for name in TURN_FIELDS if read_turns(record.get(name))), [])


def _said(messages: Sequence[Record]) -> list[str]:
    return [turn.text for turn in read_turns(list(messages)) or ()]


def _is_asked(message: Record) -> bool:
    turns = read_turns([message])
    return turns is not None and known_role(turns[0].role) in ("user", "system")


def _answer_at(messages: Sequence[Record]) -> int:
    """Return where the answer at the end of a conversation begins; its length if there is none."""
    start = len(messages)
    while start:
        turns = read_turns([messages[start - 1]])
        # An entry of both question and answer is not taken apart.
        if not turns or known_role(turns[-1].role) != "assistant" or len(turns) > 1:
            break
        start -= 1
    return start
