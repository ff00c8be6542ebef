"""Turns of conversations, in every layout that records hold them in.

Three layouts are read, as lists under any of the names in `TURN_FIELDS`:

- `{from, value}` of ShareGPT and LLaVA, `{role, content}` of OpenAI and Hugging Face, and mixtures
  of the two. Content is a string or a list of parts.
- a pair a line: `{user, assistant}` of The Cauldron, `{human, assistant}` of ms-swift,
  `{system, input, output}` of XTuner, `{question, answer}` and the like.

A `system` of the record's own goes before them, as LLaMA-Factory and ShareGPT mean it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from datapipe.errors import DecodeError
from datapipe.text.image_marks import IMAGE_PLACE, mark_all, mark_contexts
from datapipe.text.other_media import (
    VIDEO_PARTS,
    check_fields,
    check_marks,
    check_turn,
    is_null,
    media_part,
)
from datapipe.text.videos import VIDEO_PLACE, frames_remedy, has_videos, mark_videos

TURN_FIELDS = ("messages", "conversations", "conversation", "dialogue", "dialog", "turns", "texts")
"""Fields that may hold the turns of a conversation; the first that does counts."""

ROLES = {
    **dict.fromkeys(("user", "human", "prompter", "usr"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "chatbot", "model", "ai"), "assistant"),
    **dict.fromkeys(("function_call", "tool_call"), "assistant"),  # what the model writes to a tool
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "observation", "function", "ipython"), "tool"),
    **dict.fromkeys(("tool_response", "function_response"), "tool"),
}
"""Names of roles, in small letters, and the role that each means.

Sources: LLaVA and ShareGPT (`human`, `gpt`), LLaMA-Factory (`observation`, `function_call`),
OpenAI (`developer`, `function`), ms-swift (`tool_call`, `tool_response`), OpenAssistant.
"""

PAIRS = (
    ("user", "assistant"),
    ("human", "assistant"),
    ("human", "gpt"),
    ("question", "answer"),
    ("input", "output"),
    ("instruction", "output"),
    ("prompt", "response"),
    ("query", "response"),
    ("q", "a"),
)
"""Fields of one object that hold what is asked and what is answered."""

_CALLS = ("tool_calls", "function_call")  # of OpenAI's Chat Completions, beside the content
_SYSTEM_FIELDS = ("system", "system_prompt")
# Whether a turn is learnt. OpenAI's fine-tuning API: weight. XTuner and ms-swift: loss,
# output_with_loss, loss_scale. Axolotl: train, training. Others: train_on_turn, calculate_loss.
_FLAGS = (
    *("weight", "loss", "train", "output_with_loss", "loss_scale", "training", "train_on_turn"),
    *("calculate_loss", "learn"),
)
_CHOICES = ("choices", "options")
_MASKS = ("mask", "masked")  # true where a turn is not learnt
_MARKING = frozenset({*_FLAGS, *_MASKS})
# Of Qwen3 and DeepSeek, of OpenRouter, of gpt-oss: apart from the answer.
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_BOXED = ("<bbox>", "<ref-object>")  # of ms-swift, for the boxes and the names in `objects`

# Types of content parts in OpenAI's Chat Completions and Responses, and in Hugging Face's chat
# templates. Qwen-VL also writes parts without a type: {"image": ...}, {"text": ...}.
_TEXT_PARTS = ("text", "input_text", "output_text")
_IMAGE_PARTS = ("image", "image_url", "input_image")


class Turn(NamedTuple):
    """One turn of a conversation."""

    role: str  # "user", "assistant", "system" or "tool"
    text: str  # with `<image>` at the place of each image, `<video>` at that of each video
    # True if the model learns to write it: the assistant's turns that have text and are not marked
    # otherwise
    trained: bool


class RawTurn(NamedTuple):
    """A turn as its record has it."""

    role: str  # the record's own word, "" where it has none
    text: str  # the record's own, with `<image>` for each image part, `<video>` for each video
    learn: Any = None  # what the record says of whether it is learnt; None where it says nothing


def conversation(record: Mapping[str, Any], *, images: int | None = None) -> list[Turn] | None:
    """Return the turns of a record, a parsed JSON object, or None where it holds no conversation.

    `images` is how many its sample has; None if that is not known. Raises `DecodeError` if a role
    is not known, a mark of what is learnt is neither true nor false, a turn is not understood, the
    record has sound, a video without frames, a tool call or anything else that is not read, or
    numbered places of images are out of order.

    Examples:
        >>> conversation({"conversations": [{"from": "human", "value": "<image>What?"},
        ...                                 {"from": "gpt", "value": "A cat."}]})
        [Turn(role='user', text='<image>What?', trained=False), \
Turn(role='assistant', text='A cat.', trained=True)]
    """
    raw = raw_turns(record)
    if raw is not None:
        check_fields(record, images)
    videos = has_videos(record)
    for field in TURN_FIELDS:
        entries = record.get(field)
        if not isinstance(entries, list) or (raw is None and not any(map(_is_turn, entries))):
            continue
        for number, entry in enumerate(entries, 1):
            if isinstance(entry, Mapping):
                check_message(
                    entry, f"turn {number} of `{field}`", videos=videos, understood=raw is not None
                )
                check_turn(entry, number, videos=videos)
        if raw is None:
            raise DecodeError(f"`{field}` holds a turn that is not understood")
    if raw is None:
        return None
    for name in _SYSTEM_FIELDS:
        if isinstance(system := record.get(name), list | Mapping) and not is_null(system):
            check_message({"role": "system", "content": system}, f"`{name}`", videos=False)
    for mark in _BOXED if record.get("objects") else ():
        if any(mark in turn.text for turn in raw):
            raise DecodeError(
                f"the text has {mark} for what `objects` holds; write the boxes and names into "
                "the text"
            )
    turns = []
    texts = mark_all([turn.text for turn in raw], images)
    for number, (turn, text) in enumerate(zip(raw, texts, strict=True), 1):
        role = _role(turn.role, number, len(raw))
        check_marks(turn.text, record, is_answer=role == "assistant")
        learn = _learn(turn.learn, number)
        words = text
        if videos:
            text, words = mark_videos(text), mark_videos(text, "")
        turns.append(Turn(role, text, role == "assistant" and learn and has_words(words)))
    return turns


def check_message(turn: Any, what: str, *, videos: bool, understood: bool = False) -> None:
    """Raise `DecodeError` if a turn, called `what`, is no message of text, images and `videos`."""
    if not isinstance(turn, Mapping):
        raise DecodeError(f"{what} is a {type(turn).__name__}, not an object")
    content = turn.get("content")
    for part in content if isinstance(content, list) else ():
        kind = part_kind(part)
        if videos and kind in VIDEO_PARTS:
            continue
        if kind not in ("text", "image"):
            raise DecodeError(
                f"{what} has a part ({kind[:80]}) that is neither text nor image; nothing else is "
                f"supported{frames_remedy(kind)}"
            )
        if kind == "text" and not isinstance(part, str) and not isinstance(part.get("text"), str):
            raise DecodeError(f"{what} has a part of text without a `text`")
    for name in _CALLS:
        if turn.get(name) and not is_null(turn[name]):
            raise DecodeError(
                f"{what} calls a tool in `{name}`, which is not read; write the call into the text "
                "of the turn, as the model's chat template does"
            )
    if understood:
        return
    has_role = "role" in turn or "from" in turn
    if has_role and turn.get("value") is None and message_text(turn) is None:
        value = "value" if "value" in turn else "content"
        kind = type(turn.get(value)).__name__
        raise DecodeError(f"`{value}` of {what} is neither text nor a list of parts, but a {kind}")


def refuse_unread_turns(record: Mapping[str, Any]) -> None:
    """Raise `DecodeError` if a record without a text has turns in a form that is not read."""
    for field in (*TURN_FIELDS[:2], "contents"):
        turns = record.get(field)
        if field == "contents" and not _are_of_gemini(turns):
            continue
        if isinstance(turns, str | list | Mapping) and turns and not is_null(turns):
            json = isinstance(turns, str) and turns.lstrip().startswith("[")
            remedy = f", or pack its JSON with --map 'messages={field}'" if json else ""
            raise DecodeError(
                f"`{field}` is not a list of turns with a role and a text each; rewrite it as one"
                f"{remedy}"
            )


def _are_of_gemini(turns: Any) -> bool:
    """Return whether turns are those of Gemini, which packing reads in files of records alone."""
    said = turns if isinstance(turns, list) else [None]
    return all(isinstance(turn, Mapping) and "parts" in turn for turn in said)


def raw_turns(record: Mapping[str, Any]) -> list[RawTurn] | None:
    """Return the turns of a record in its own words, or None; never raises."""
    _, turns = turns_in(record)
    if turns and not any(known_role(turn.role) == "system" for turn in turns):
        for name in _SYSTEM_FIELDS:
            # Of text, or of parts as Anthropic and Amazon Bedrock have it.
            system = message_text({"content": record.get(name)})
            if system and system.strip():
                return [RawTurn("system", system), *turns]
    return turns or None


def turns_in(record: Mapping[str, Any]) -> tuple[str, list[RawTurn]]:
    """Return the field of a record that counts as its turns, and these; "" and none without."""
    for field in TURN_FIELDS:
        if turns := read_turns(record.get(field)):
            return field, turns
    return "", []


def read_turns(value: Any) -> list[RawTurn] | None:
    """Return the turns of a list, or None where it is none, or an entry is not understood."""
    if not isinstance(value, list):
        return None
    turns: list[RawTurn] = []
    for entry in value:
        if not isinstance(entry, Mapping) or not (read := _read_entry(entry)):
            return None
        turns += read
    return turns


def has_words(text: str) -> bool:
    """Return whether a text is more than blanks and places of images."""
    return bool(text.replace(IMAGE_PLACE, "").strip())


def known_role(name: str) -> str | None:
    """Return the role that a record's word means, or None."""
    # DeepSeek-VL writes <|User|>, others "USER:".
    return ROLES.get(name) or ROLES.get(name.strip("<|>: \n").lower())


def part_kind(part: Any) -> str:
    """Return the kind of a part of a message: "text", "image", or the type it gives itself."""
    if isinstance(part, str):
        return "text"
    if not isinstance(part, Mapping):
        return type(part).__name__
    kind = part.get("type")
    if kind is None:
        fields = [name for name in ("text", *_IMAGE_PARTS) if part.get(name) is not None]
        kind = media_part(part) or (fields[0] if len(fields) == 1 else "without a type")
    if not isinstance(kind, str):
        return type(kind).__name__
    return "text" if kind in _TEXT_PARTS else "image" if kind in _IMAGE_PARTS else kind


def message_text(message: Mapping[str, Any]) -> str | None:
    """Return the text of one message, `<image>` for each image part; None if it makes no sense.

    Parts follow each other without a separator, as chat templates write them. `<video>` stands for
    a video; other parts, which `check_message` refuses, are left out, as are tool calls. XTuner has
    a part for each image, and `<IMG_CONTEXT>` in a text where it belongs: one place, not two.
    """
    content = message.get("content")
    if content is None:
        return "" if any(map(message.get, _CALLS)) else None
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = [_part_text(part) for part in content]
    if any(text is None for text in texts):
        return None
    if any(text and "<IMG_CONTEXT>" in text for text in texts):
        kinds = [part_kind(part) for part in content]
        said = [text for text, kind in zip(texts, kinds, strict=True) if kind == "text"]
        marked, marks = mark_contexts("".join(filter(None, said)))
        if 0 < marks == kinds.count("image"):
            return marked
    return "".join(filter(None, texts))


def _read_entry(entry: Mapping[str, Any]) -> list[RawTurn]:
    """Return the turns of one entry: one, two of a pair, or none if it is not understood."""
    learn = None if _MARKING.isdisjoint(entry) else _flag(entry)
    text = entry.get("value")
    if not isinstance(text, str):
        text = message_text(entry)
    if text is None:
        return _read_pair(entry, learn)
    role = entry.get("from", entry.get("role"))
    role = role if isinstance(role, str) else ""
    for name in _THOUGHTS if known_role(role) not in ("user", "system") else ():
        if entry.get(name) is None:
            continue
        thought = message_text({"content": entry[name]})
        if thought and "</think>" not in text and thought.strip() not in text:
            text = f"<think>\n{thought.strip()}\n</think>\n\n{text}"
    return [RawTurn(role, text, learn)]


def _read_pair(entry: Mapping[str, Any], learn: Any) -> list[RawTurn]:
    """Return the turns of a question and its answer, after a system message if there is one."""
    if any(entry.get(name) for name in _CHOICES):
        return []  # the answer is a letter or a number of one of them
    fields = {str(name).lower(): value for name, value in entry.items()}
    for asked, answered in PAIRS:
        if isinstance(fields.get(asked), str) and isinstance(fields.get(answered), str):
            question = fields[asked]
            if asked == "input" and isinstance(fields.get("instruction"), str):  # of Alpaca
                question = "\n".join(filter(None, (fields["instruction"], question)))
            pair = [RawTurn("user", question), RawTurn("assistant", fields[answered], learn)]
            if isinstance(fields.get("system"), str) and fields["system"].strip():
                pair.insert(0, RawTurn("system", fields["system"]))
            return pair
    return []


def _flag(entry: Mapping[str, Any]) -> Any:
    """Return what an entry says of whether it is learnt; None where it says nothing."""
    mask = next((entry[mask] for mask in _MASKS if entry.get(mask) not in (None, 0)), None)
    if mask == 1:
        return False
    if isinstance(mask, int | float) or str(mask).lower() in ("true", "false"):
        return mask  # refused like other flags; anything else is a mask of an image
    return next((entry[flag] for flag in _FLAGS if entry.get(flag) not in (None, 1)), None)


def _is_turn(entry: Any) -> bool:
    if not isinstance(entry, Mapping):
        return False
    role = entry.get("from", entry.get("role"))
    is_said = isinstance(role, str) and known_role(role) is not None
    return is_said or any(entry.keys() >= {*pair} for pair in PAIRS)


def _part_text(part: Any) -> str | None:
    kind = part_kind(part)
    if kind == "image":
        return IMAGE_PLACE
    if kind in VIDEO_PARTS:
        return VIDEO_PLACE
    if kind != "text":
        return "" if isinstance(part, Mapping) else None
    text = part if isinstance(part, str) else part.get("text")
    return text if isinstance(text, str) else None


def _role(name: str, number: int, turns: int) -> str:
    if not name:
        raise DecodeError(f"turn {number} of {turns} has no role")
    role = known_role(name)
    if role is None:
        raise DecodeError(
            f"turn {number} of {turns} has the role {name[:80]!r}, which is not known; rename it "
            "to user, assistant, system or tool"
        )
    return role


def _learn(flag: Any, number: int) -> bool:
    if flag is None:
        return True
    if isinstance(flag, bool) or flag in (0, 1):
        return bool(flag)
    raise DecodeError(
        f"turn {number} has {flag!r} as the flag that says whether it is learnt; "
        "give 0, 1, true or false"
    )
