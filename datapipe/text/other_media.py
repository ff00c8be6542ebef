"""Media of records that nothing reads: sound, videos, documents, points, masks.

Only text and images are trained on. A record that needs more would teach a model to answer what it
was not shown, so it is refused by the name of its field, part or mark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from datapipe.errors import DecodeError

MEDIA_EXTENSIONS = {
    "a video": ("mp4", "mov", "avi", "mkv", "webm", "m4v", "mpg", "mpeg", "wmv", "flv", "3gp"),
    "sound": ("wav", "mp3", "flac", "ogg", "m4a", "aac", "opus", "wma"),
    "a document": ("pdf", "doc", "docx", "ppt", "pptx", "xls", "xlsx", "epub", "ps", "eps"),
}
"""Extensions of files that models are asked about and that are not read."""

# Types of content parts, and names of fields, by the projects that have them. OpenAI: input_audio,
# file, input_file. Anthropic: document. vLLM, XTuner: audio_url, video_url. Qwen-Omni: audio,
# video. LLaMA-Factory, ms-swift: audios, videos. VILA: sound. LLaMA-Omni: speech.
_RECORDED = ("video", "audio", "sound", "speech")
_WRITTEN = ("pdf", "document", "file", "attachment")
MEDIA_PARTS = frozenset(
    {*_RECORDED, *_WRITTEN, "audio_url", "video_url", "file_url"}
    | {"input_audio", "input_video", "input_file"}
)
"""Types of the parts of a message that hold a medium that is not read."""

_ALWAYS = ("videos", "video", "audios", "audio")  # whatever they hold
_HEARD = frozenset({"sound", "sounds", "speech", "speeches"})
# Beside images these say where the images come from: the page of a PDF, the frame of a video.
_ORIGINS = frozenset(
    {
        *(f"{name}{end}" for name in _WRITTEN for end in ("", "s")),
        *(
            f"{name}_{end}"
            for name in _RECORDED
            for end in ("path", "paths", "file", "files", "filepath", "filename", "url", "urls")
        ),
    }
)
_OF_TURNS = frozenset({*_ALWAYS, *_HEARD, *_ORIGINS, "path"})
_SAID = ("message_type", "modality")  # of a turn: Kimi-Audio
_NAMES = ("path", "url", "name", "filename", "file_name", "file_data")

_ENDS = tuple(f".{end}" for ends in MEDIA_EXTENSIONS.values() for end in ends)
_FILE_NAME = re.compile(r"\S*[^\s/.]\.[A-Za-z][A-Za-z0-9]{1,4}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+|data:[\w.+-]+/\S+")
_DATA = re.compile(r"data:(video|audio|application/(pdf|msword|vnd))", re.IGNORECASE)
_LONGEST_NAME = 4096
_DEEP = 4  # lists in lists that are looked into

_PLAIN_MARK = re.compile(r"(?<!`)<(?:vila/|__dj__)?(video|audio)>", re.IGNORECASE)
# `<sound>`, `<audio_1>`, `<|POINT|>` of PixMo, `<|video_pad|>`, `<vila/video>`; not `List<Item>`.
_MARK = re.compile(
    r"(?<![`A-Za-z0-9_])<(?P<bar>\|?)(?:vila/|__dj__)?(?P<name>[A-Za-z][A-Za-z_-]{1,30}?)"
    r"(?:_(?:pad|bos|start|soft_token|token|placeholder|context))?(?:[ _-]?\d{1,3})?(?P=bar)>",
    re.IGNORECASE,
)
_SHAPES = frozenset({"point", "box", "bbox", "region", "polygon", "keypoint", "coordinate", "mask"})
_FIELDS_OF_MARKS = ("", "s", "es", "_path", "_paths", "_file", "_url", "_cloud")
# Words in angle brackets that records have fields of, whatever their texts are about.
_WORDS = frozenset(
    {
        *("image", "img", "url", "uri", "link", "path", "source", "filename", "id", "name"),
        *("meta", "metadata", "tool", "function", "messages", "message", "conversations"),
        *("conversation", "dialogue", "dialog", "turn", "text", "system", "user", "assistant"),
        *(
            "title",
            "author",
            "email",
            "domain",
            "site",
            "website",
            "page",
            "header",
            "body",
            "html",
        ),
        *("human", "gpt", "question", "answer", "input", "output", "instruction", "prompt"),
        *("response", "query", "option", "choice", "solution", "think"),
        *("area", "base", "br", "col", "embed", "hr", "param", "track", "wbr"),  # HTML without end
    }
)


def check_fields(record: Mapping[str, Any], images: int | None) -> None:
    """Refuse a record with a video, sound, or a document that it has no pages of.

    Args:
        record: a parsed JSON object.
        images: how many images its sample has; None if that is not known.

    Raises:
        DecodeError: it has.
    """
    for field in _ALWAYS:
        if (value := record.get(field)) and not _is_null(value):
            raise _refusal(field)
    for field in sorted(record.keys() & _HEARD):
        if _holds(record[field]):
            raise _refusal(field)
    if images == 0:
        for field in sorted(record.keys() & _ORIGINS):
            if _is_medium(record[field]):
                raise _refusal(field)


def check_turn(turn: Mapping[str, Any], number: int) -> None:
    """Refuse a turn with a medium of its own, in a part or in a field.

    Raises:
        DecodeError: it has one.
    """
    content = turn.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, Mapping) and (kind := media_part(part)):
            raise DecodeError(
                f"turn {number} has a part ({kind}) that is neither text nor image; nothing else "
                "is supported"
            )
    for field in _SAID:
        said = turn.get(field)
        if isinstance(said, str) and any(name in said.lower() for name in _RECORDED):
            raise DecodeError(
                f"turn {number} has {field!r}: {said[:80]!r}; only text and images are supported"
            )
    for field in sorted(turn.keys() & _OF_TURNS):
        if _is_medium(turn[field]):
            raise DecodeError(f"turn {number} has `{field}`; only text and images are supported")


def check_marks(text: str, record: Mapping[str, Any], *, is_answer: bool = False) -> None:
    """Refuse a text with a mark for something that is not read.

    A mark is the name of a field of the record that holds a path, an address, bytes or an object,
    or a shape's numbers: `<sound>` beside `sound` or `sounds`. `<video>` and `<audio>` are marks by
    themselves, except in an answer. Elements of HTML, which have an end, and marks in backticks are
    words.

    Args:
        text: the text, with the marks of images as its record spells them.
        record: the fields beside the text.
        is_answer: the assistant says it.

    Raises:
        DecodeError: there is a mark.
    """
    if "<" not in text:
        return
    small = text.lower()
    for found in _MARK.finditer(text):
        name = found["name"].lower()
        if name in _WORDS or name.removesuffix("s") in _WORDS or _has_end(small, name):
            continue
        field = _field_of(name, record)
        if field is not None:
            raise DecodeError(
                f"the text has {found[0]} for what `{field}` holds, which is not read; only text "
                "and images are supported"
            )
    if not is_answer and (plain := _PLAIN_MARK.search(text)):
        kind = plain[1].lower()
        if not _has_end(small, kind):
            raise DecodeError(
                f"the text has the place of {'a video' if kind == 'video' else 'audio'} "
                f"({plain[0]}); only text and images are supported"
            )


def media_part(part: Mapping[str, Any]) -> str:
    """Return the kind of a part that holds a medium that is not read; "" for other parts.

    Parts of Qwen-Omni may have no type: `{"audio": PATH}`.
    """
    kind = part.get("type")
    if kind is None:
        held = [name for name in sorted(MEDIA_PARTS) if not _is_null(part.get(name))]
        alone = not any(name in part for name in ("text", "image", "image_url"))
        return next((name for name in held if alone or _is_medium(part[name])), "")
    return kind if isinstance(kind, str) and kind in MEDIA_PARTS else ""


def _field_of(name: str, record: Mapping[str, Any]) -> str | None:
    """Return the field that a mark stands for, if it holds something that is not read."""
    one = name.removesuffix("s")
    for field, value in record.items():
        small = str(field).lower()
        if not small.startswith(name) or small[len(name) :] not in _FIELDS_OF_MARKS:
            continue
        if _holds(value) or (name in _HEARD and value) or (one in _SHAPES and _numbers(value)):
            return str(field)
    return None


def _has_end(text: str, name: str) -> bool:
    return any(end in text for end in (f"</{name}>", f"<|/{name}|>", f"<|{name}_end|>"))


def _holds(value: Any, deep: int = _DEEP) -> bool:
    """Return whether a value is more than words: a path, an address, bytes or an object."""
    if isinstance(value, str):
        return _is_file(value) or _URL.match(value) is not None
    if isinstance(value, list | tuple):
        return deep > 0 and any(_holds(item, deep - 1) for item in value)
    if isinstance(value, Mapping):
        return not _is_null(value)
    return isinstance(value, bytes | bytearray | memoryview) and len(value) > 0


def _is_medium(value: Any, deep: int = _DEEP) -> bool:
    """Return whether a value is a video, sound or a document: its bytes, or a file of its kind."""
    if isinstance(value, str):
        if _DATA.match(value):
            return True
        name = value.partition("?")[0].lower()
        return len(name) < _LONGEST_NAME and "\n" not in name and name.endswith(_ENDS)
    if isinstance(value, Mapping):
        value = [value.get(name) for name in _NAMES]
    if isinstance(value, list | tuple):
        return deep > 0 and any(_is_medium(item, deep - 1) for item in value)
    return isinstance(value, bytes | bytearray | memoryview) and len(value) > 0


def _numbers(value: Any, deep: int = _DEEP) -> bool:
    """Return whether a value is a list of numbers, as shapes are."""
    if isinstance(value, list | tuple):
        return deep > 0 and any(_numbers(item, deep - 1) for item in value)
    return deep < _DEEP and isinstance(value, int | float) and not isinstance(value, bool)


def _is_file(text: str) -> bool:
    """Return whether a text is the name of a file; one with blanks only of a known medium."""
    if len(text) >= _LONGEST_NAME or "\n" in text:
        return False
    return _FILE_NAME.fullmatch(text) is not None or text.lower().endswith(_ENDS)


def _is_null(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(item is None for item in value.values())
    return value is None


def _refusal(field: str) -> DecodeError:
    return DecodeError(f"record has `{field}`; only text and images are supported")
