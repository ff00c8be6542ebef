"""Records of conversations, and of documents with images in them.

- llava: `conversations`, and `image` (LLaVA, ShareGPT4V, LLaVA-OneVision), a list `images`
  (LLaMA-Factory), an object of images by their places in the text (MiniCPM-V), or `<img>PATH</img>`
  in the text (Qwen-VL).
- chat: messages with images in their parts (OpenAI, Qwen, Gemini), or in a list `images` with a
  part `{type: image}` at each place (TRL, SmolVLM); turns as `conversation` (Mantis, XTuner);
  messages that are texts alone, of user and assistant in turn (PixMo-CapQA).
- cauldron: `images`, and `texts` of questions and answers (The Cauldron, FineVision).
- interleaved: texts and images in turn, as two lists over the same places (OBELICS). Its `images`
  are addresses, which have to be downloaded and replaced by paths or bytes before.
- preference: a prompt with a `chosen` and a `rejected` answer, which become lists of messages
  whatever the layout was; `datapipe.text.preference` lists the layouts.

Sources: https://platform.openai.com/docs/guides/images-vision,
https://ai.google.dev/api/caching#Content, https://huggingface.co/datasets/HuggingFaceM4/OBELICS,
https://huggingface.co/datasets/HuggingFaceM4/the_cauldron and, with ratings in further fields,
https://huggingface.co/datasets/HuggingFaceM4/FineVision.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Any

from datapipe.errors import DecodeError, MissingMember
from datapipe.pack.records.fields.turns import has_images, unpack_turns
from datapipe.pack.records.images.fields import with_names
from datapipe.pack.records.reader import Record, RecordReader
from datapipe.text.conversation import TURN_FIELDS, read_turns
from datapipe.text.image_marks import IMAGE_PLACE
from datapipe.text.preference import ANSWERS, has_answers, read_pair, without_turns
from datapipe.text.sample_text import is_document, is_question_list, misplaced

_FIELDS = tuple(name for name in TURN_FIELDS if name not in ("conversations", "messages", "texts"))

_GEMINI = "contents"


def is_preference(record: Any) -> bool:
    """Return whether a record has a prompt and two answers; never raises."""
    try:
        return has_answers(record) and read_pair(record) is not None
    except (DecodeError, RecursionError):
        return False


def _unpack_preference(record: Record) -> tuple[list[Any], Record]:
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


def is_chat(record: Record) -> bool:
    """Return whether a record has a list of messages."""
    return _field(record) is not None


def _unpack_cauldron(record: Record) -> tuple[list[Any], Record]:
    if record.get("texts") and not is_question_list(record["texts"]):
        raise DecodeError("`texts` is no list of objects with `user` and `assistant` of text")
    return unpack_turns(record, "texts")


def _unpack_chat(record: Record) -> tuple[list[Any], Record]:
    if _is_gemini(record):
        record = _as_messages(record)
    elif _alternates(record):
        roles = cycle(("user", "assistant"))
        said = zip(roles, record["messages"], strict=False)
        record = {**record, "messages": [{"role": role, "content": text} for role, text in said]}
    return unpack_turns(record, _field(record) or "messages")


def _alternates(record: Record) -> bool:
    """Return whether messages are texts of user and assistant in turn, as in PixMo-CapQA.

    Its `answer` is the last of them, which tells who says it.
    """
    turns, answer = record.get("messages"), record.get("answer")
    if not isinstance(turns, list) or not turns or len(turns) % 2:
        return False
    are_texts = all(isinstance(text, str) for text in (*turns, answer))
    return are_texts and turns[-1].strip() == str(answer).strip()


def _field(record: Record) -> str | None:
    if isinstance(record.get("messages"), list):
        return "messages"
    if _is_gemini(record):
        return _GEMINI
    return next((name for name in _FIELDS if read_turns(record.get(name))), None)


def _is_gemini(record: Record) -> bool:
    """Return whether the turns are those of Google's Gemini: `contents` of {role, parts}."""
    turns = record.get(_GEMINI)
    return isinstance(turns, list) and bool(turns) and all(map(_has_parts, turns))


def _has_parts(turn: Any) -> bool:
    return isinstance(turn, Mapping) and isinstance(turn.get("parts"), list)


def _as_messages(record: Record) -> Record:
    rest = dict(record)
    turns = rest.pop(_GEMINI)
    for name in ("systemInstruction", "system_instruction"):
        if _has_parts(record.get(name)):
            turns = [{**rest.pop(name), "role": "system"}, *turns]
    messages = [
        {"role": turn.get("role", "user"), "content": [_part(part) for part in turn["parts"]]}
        for turn in turns
    ]
    return {**rest, "messages": messages}


def _part(part: Any) -> Any:
    for name in ("inlineData", "inline_data", "fileData", "file_data"):
        if isinstance(part, Mapping) and isinstance(data := part.get(name), Mapping):
            kind = str(data.get("mimeType") or data.get("mime_type"))
            source = data.get("data") or data.get("fileUri") or data.get("file_uri")
            return {"type": "image" if kind.startswith("image/") else kind, "image": source}
    return part


def unpack_document(record: Record) -> tuple[list[Any], Record]:
    """Return the images of a document, in order, and the record with names in their places.

    SampleError if the record is no document, or a place in it is not text or image.
    """
    texts: Any = record.get("texts")
    images: Any = record.get("images")
    if not texts or not images:
        raise MissingMember("record has no `texts` and `images`")
    if not is_document(texts, images):
        raise DecodeError("`texts` and `images` are no lists of equal length of texts and images")
    if (index := misplaced(texts, images)) is not None:
        what = "neither text nor image" if texts[index] is None else "both a text and an image"
        raise DecodeError(f"place {index} holds {what}")
    for index, text in enumerate(texts):
        if text and IMAGE_PLACE in text:
            raise DecodeError(f"the text at place {index} contains {IMAGE_PLACE}")
    found = [image for image in images if image is not None]
    return found, with_names(record, found)


LLAVA = RecordReader(
    name="llava",
    summary="LLaVA / ShareGPT / Qwen-VL: image or images, and conversations of {from, value}",
    what="`conversations`",
    fits=lambda record: isinstance(record.get("conversations"), list) and not is_preference(record),
    unpack=lambda record: unpack_turns(record, "conversations"),
)
CHAT = RecordReader(
    name="chat",
    summary="OpenAI / Hugging Face / Anthropic / Gemini chats: messages, images in them or beside",
    what="`messages`",
    fits=lambda record: is_chat(record) and not is_preference(record),
    unpack=_unpack_chat,
)
CAULDRON = RecordReader(
    name="cauldron",
    summary="The Cauldron / FineVision: images, texts of user and assistant",
    what="`texts` of `user` and `assistant`",
    fits=lambda record: is_question_list(record.get("texts")),
    unpack=_unpack_cauldron,
)
INTERLEAVED = RecordReader(
    name="interleaved",
    summary="OBELICS: documents of texts and images in turn",
    what="`texts` and `images` over the same places",
    fits=lambda record: is_document(record.get("texts"), record.get("images")),
    unpack=unpack_document,
)
PREFERENCE = RecordReader(
    name="preference",
    summary="TRL / RLAIF-V / LLaMA-Factory: a prompt with a chosen and a rejected answer",
    what="`chosen` and `rejected` answers",
    fits=is_preference,
    unpack=_unpack_preference,
)
READERS = (LLAVA, CHAT, CAULDRON, INTERLEAVED, PREFERENCE)
