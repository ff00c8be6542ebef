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
- mmc4: documents as sentences, and images that name the sentence they belong to. Its images are
  addresses; a downloader keeps them under their `image_name`.
- preference: a prompt with a `chosen` and a `rejected` answer, which become lists of messages
  whatever the layout was; `datapipe.text.preference` lists the layouts.

Sources: https://platform.openai.com/docs/guides/images-vision,
https://ai.google.dev/api/caching#Content, https://huggingface.co/datasets/HuggingFaceM4/OBELICS,
https://github.com/allenai/mmc4,
https://huggingface.co/datasets/HuggingFaceM4/the_cauldron and, with ratings in further fields,
https://huggingface.co/datasets/HuggingFaceM4/FineVision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from datapipe.errors import DecodeError, MissingMember, PackError
from datapipe.pack.input.raw_sample import RawInput, ReadOptions
from datapipe.pack.input.survey import Survey
from datapipe.pack.records.fields.turns import has_images, unpack_turns
from datapipe.pack.records.images.fields import with_names
from datapipe.pack.records.images.roots import Images, find_images
from datapipe.pack.records.reader import Record, RecordReader
from datapipe.pack.records.streams.containers import first_records
from datapipe.pack.records.streams.record_files import RecordFiles, find_records
from datapipe.report.table import counted
from datapipe.text.conversation import TURN_FIELDS, read_turns
from datapipe.text.image_marks import IMAGE_PLACE
from datapipe.text.preference import ANSWERS, has_answers, read_pair, without_turns
from datapipe.text.sample_text import is_document, is_question_list, misplaced

_FIELDS = tuple(name for name in TURN_FIELDS if name not in ("conversations", "messages", "texts"))

_GEMINI = "contents"
_PROBED = 500  # as few of them may have been downloaded
_OF_MMC4 = "`text_list` and `image_info`"


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
    return _field(record) is not None or _is_gemini(record)


def _unpack_cauldron(record: Record) -> tuple[list[Any], Record]:
    if record.get("texts") and not is_question_list(record["texts"]):
        raise DecodeError("`texts` is no list of objects with `user` and `assistant` of text")
    return unpack_turns(record, "texts")


def _unpack_chat(record: Record) -> tuple[list[Any], Record]:
    if _is_gemini(record):
        record = _as_messages(record)
    elif _alternates(record):
        said = zip(cycle(("user", "assistant")), record["messages"], strict=False)
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
        said: Any = record.get(name)
        said = {"parts": [said]} if isinstance(said, str) and said.strip() else said
        if _has_parts(said):
            del rest[name]
            turns = [{**said, "role": "system"}, *turns]
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


@dataclass(frozen=True, kw_only=True)
class Mmc4Reader(RecordReader):
    """`{text_list, image_info: [{image_name, matched_text_index}]}`, as `texts` and `images`.

    An image stands before the sentence it is matched to. One whose file is not there is left out of
    its document; a document that loses all of its images so is rejected.
    """

    def open(self, survey: Survey, options: ReadOptions) -> RecordFiles:
        files = find_records(survey, options, _is_mmc4)
        files = files or super().open(survey, options).files  # which says what is wrong
        images = _find_images(files[0], survey.raw, options)
        records = super().open(survey, replace(options, image_root=images.folders[0]))
        return replace(records, images=images)

    def read(self, source: RecordFiles, options: ReadOptions) -> Iterator[RawInput]:
        missing = 0

        def unpack(record: Record) -> tuple[list[Any], Record]:
            nonlocal missing
            names = _names(record)
            images, kept = unpack_document(
                _as_document(record, {*filter(source.images.has, names)})
            )
            missing += len(names) - len(images)
            return images, kept

        here = replace(options, deferred=False)  # where the missing images are counted
        yield from RecordReader.read(replace(self, unpack=unpack), source, here)
        if missing:
            options.notes.decide(
                f"left out of documents that have other images: {counted(missing, 'image')} not "
                "downloaded"
            )


def _is_mmc4(record: Record) -> bool:
    sentences, images = record.get("text_list"), record.get("image_info")
    are_lists = isinstance(sentences, list) and isinstance(images, list)
    return are_lists and all(isinstance(image, Mapping) for image in images or ())


def _as_document(record: Record, there: set[str]) -> Record:
    """Return the record with `texts` and `images` in turn, as OBELICS has them.

    `there` are names of the images that are there. SampleError if none is, or on no such document.
    """
    if not _is_mmc4(record):
        raise MissingMember(f"record has no {_OF_MMC4} as lists")
    sentences, found = record["text_list"], list(record["image_info"])
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise DecodeError("`text_list` holds something else than texts")
    before: dict[int, list[str]] = {}
    for number, image in enumerate(found):
        name, index = image.get("image_name"), image.get("matched_text_index")
        if not isinstance(name, str) or not name:
            raise MissingMember(f"image {number} has no `image_name`")
        if type(index) is not int or not 0 <= index < len(sentences):
            raise DecodeError(
                f"image {number} has the `matched_text_index` {index!r} of {len(sentences)} texts"
            )
        if name in there:
            before.setdefault(index, []).append(name)
    if found and not before:
        raise MissingMember(f"none of its {len(found)} images was downloaded")
    texts: list[str | None] = []
    images: list[str | None] = []
    for index, sentence in enumerate(sentences):
        names = before.get(index, [])
        texts += [*(None for _ in names), sentence]
        images += [*names, None]
    rest = {name: value for name, value in record.items() if name != "text_list"}
    return {**rest, "texts": texts, "images": images}


def _find_images(path: Path, raw: Path, options: ReadOptions) -> Images:
    """Find the folder of the images; many may never have been downloaded."""
    names = [name for record in first_records(path) for name in _names(record)]
    try:
        return find_images(path, raw, options, names[:_PROBED])
    except PackError as error:
        raise PackError(
            f"{error}, or download them first: `raw_url` of each, as its `image_name`"
        ) from error


def _names(record: Record) -> list[str]:
    info = record.get("image_info")
    images = [i for i in info if isinstance(i, Mapping)] if isinstance(info, list) else []
    return [name for i in images if isinstance(name := i.get("image_name"), str) and name]


LLAVA = RecordReader(
    name="llava",
    summary="LLaVA / ShareGPT / Qwen-VL: image or images, and conversations of {from, value}",
    what="`conversations`",
    fits=lambda record: isinstance(record.get("conversations"), list) and not is_preference(record),
    unpack=partial(unpack_turns, field="conversations"),
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
MMC4 = Mmc4Reader(
    name="mmc4",
    summary="MMC4: documents of text_list and image_info, images under their image_name",
    what=_OF_MMC4,
    fits=_is_mmc4,
    unpack=unpack_document,
)
READERS = (LLAVA, CHAT, CAULDRON, INTERLEAVED, PREFERENCE, MMC4)
