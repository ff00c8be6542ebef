"""Media of records that nothing reads: sound, videos, documents, points, masks.

Only text and images are trained on. A record that needs more would teach a model to answer what it
was not shown, so it is refused by the name of its field, part or mark. Videos whose frames packing
took out are images, so a record with `video_frames` may have fields, parts and marks of videos.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from datapipe.errors import DecodeError
from datapipe.text.videos import frames_remedy, has_videos, mark_videos

MEDIA_EXTENSIONS = {
    "a video": ("mp4", "mov", "avi", "mkv", "webm", "m4v", "mpg", "mpeg", "wmv", "flv", "3gp"),
    "sound": ("wav", "mp3", "flac", "ogg", "m4a", "aac", "opus", "wma"),
    "a document": ("pdf", "doc", "docx", "ppt", "pptx", "xls", "xlsx", "epub", "ps", "eps"),
}
"""Extensions of files that models are asked about and that are not read."""

# Types of content parts, and names of fields, by the projects that have them. OpenAI: input_audio,
# file, input_file. Anthropic: document. vLLM, XTuner: audio_url, video_url. Qwen-Omni: audio,
# video. LLaMA-Factory, ms-swift: audios, videos. VILA: sound. LLaMA-Omni: speech.
_RECORDINGS = ("video", "audio", "sound", "speech")
VIDEO_PARTS = frozenset({"video", "video_url", "input_video"})
"""Types of the parts of a message that hold a video."""

_DOCUMENTS = ("pdf", "document", "file", "attachment")
MEDIA_PARTS = frozenset(
    {*_RECORDINGS, *_DOCUMENTS, *VIDEO_PARTS, "audio_url", "file_url"}
    | {"input_audio", "input_file"}
)
"""Types of the parts of a message that hold a medium that is not read."""

_RECORDING_FIELDS = ("videos", "video", "audios", "audio")  # refused whatever they hold
_SOUND_FIELDS = frozenset({"sound", "sounds", "speech", "speeches"})
# With images, these say where the images come from: the page of a PDF, the frame of a video.
_SOURCE_FIELDS = frozenset(
    {
        *(f"{name}{end}" for name in _DOCUMENTS for end in ("", "s")),
        *(
            f"{name}_{end}"
            for name in _RECORDINGS
            for end in ("path", "paths", "file", "files", "filepath", "filename", "url", "urls")
        ),
    }
)
_VIDEO_FIELDS = ("videos", "video")
_FIELDS_OF_TURNS = frozenset({*_RECORDING_FIELDS, *_SOUND_FIELDS, *_SOURCE_FIELDS, "path"})
_MODALITY_FIELDS = ("message_type", "modality")  # in turns of Kimi-Audio
# Most turns have none of these, and there are many turns.
_LOOKED_AT = _FIELDS_OF_TURNS.union(_MODALITY_FIELDS)
_FILE_FIELDS = ("path", "url", "name", "filename", "file_name", "file_data")

_ENDINGS = tuple(f".{end}" for ends in MEDIA_EXTENSIONS.values() for end in ends)
_FILE_NAME = re.compile(r"\S*[^\s/.]\.[A-Za-z][A-Za-z0-9]{1,4}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+|data:[\w.+-]+/\S+")
_DATA = re.compile(r"data:(video|audio|application/(pdf|msword|vnd))", re.IGNORECASE)
_LONGEST_NAME = 4096
_MAX_DEPTH = 4  # of nested lists that are searched

_PLAIN_MARK = re.compile(r"(?<!`)<(?:vila/|__dj__)?(video|audio)>", re.IGNORECASE)
# `<sound>`, `<audio_1>`, `<|POINT|>` of PixMo, `<|video_pad|>`, `<vila/video>`; not `List<Item>`.
_MARK = re.compile(
    r"(?<![`A-Za-z0-9_])<(?P<bar>\|?)(?:vila/|__dj__)?(?P<name>[A-Za-z][A-Za-z_-]{1,30}?)"
    r"(?:_(?:pad|bos|start|soft_token|token|placeholder|context))?(?:[ _-]?\d{1,3})?(?P=bar)>",
    re.IGNORECASE,
)
_SHAPES = frozenset({"point", "box", "bbox", "region", "polygon", "keypoint", "coordinate", "mask"})
_FIELDS_OF_MARKS = ("", "s", "es", "_path", "_paths", "_file", "_url", "_cloud")
# Common words in angle brackets that are names of fields as well.
_WORDS = frozenset(
    {
        *("image", "img", "url", "uri", "link", "path", "source", "filename", "id", "name"),
        *("meta", "metadata", "tool", "function", "messages", "message", "conversations"),
        *("conversation", "dialogue", "dialog", "turn", "text", "system", "user", "assistant"),
        *("title", "author", "email", "domain", "site", "website", "page", "header", "body"),
        *("html", "human", "gpt", "question", "answer", "input", "output", "instruction", "prompt"),
        *("response", "query", "option", "choice", "solution", "think"),
        *("area", "base", "br", "col", "embed", "hr", "param", "track", "wbr"),  # HTML without end
    }
)


def check_fields(record: Mapping[str, Any], images: int | None) -> None:
    """Raise `DecodeError` for a record with a video, sound, or a document without page images.

    `images` is how many its sample has; None if that is not known.
    """
    framed = _VIDEO_FIELDS if has_videos(record) else ()
    given = [field for field in _RECORDING_FIELDS if field not in framed and record.get(field)]
    refused = [field for field in given if not is_null(record[field])]
    refused += [f for f in sorted(record.keys() & _SOUND_FIELDS) if _holds(record[f])]
    if images == 0:
        refused += [f for f in sorted(record.keys() & _SOURCE_FIELDS) if _is_medium(record[f])]
    if refused:
        raise DecodeError(
            f"record has `{refused[0]}`; only text and images are supported"
            f"{frames_remedy(refused[0])}"
        )


def check_turn(turn: Mapping[str, Any], number: int, *, videos: bool = False) -> None:
    """Raise `DecodeError` for a turn with a medium of its own in a field.

    If `videos`, the frames of its videos are images of the sample, so it may have some.
    """
    if _LOOKED_AT.isdisjoint(turn):
        return
    for field in _MODALITY_FIELDS:
        said = turn.get(field)
        if isinstance(said, str) and any(name in said.lower() for name in _RECORDINGS):
            raise DecodeError(
                f"turn {number} has {field!r}: {said[:80]!r}; only text and images are supported"
            )
    for field in sorted(turn.keys() & _FIELDS_OF_TURNS.difference(_VIDEO_FIELDS if videos else ())):
        if _is_medium(turn[field]):
            raise DecodeError(f"turn {number} has `{field}`; only text and images are supported")


def check_marks(text: str, record: Mapping[str, Any], *, is_answer: bool) -> None:
    """Raise `DecodeError` for a text with a mark for something that is not read.

    A mark is the name of a field of the record that holds a path, an address, bytes, an object, or
    the numbers of a shape: `<sound>` where the record has `sound` or `sounds`. `<video>` and
    `<audio>` are marks without a field too, except in an answer. `<video>` is no such mark where
    the record has the frames of its videos. Elements of HTML, which have an end, and marks in
    backticks are words. The text has the marks of images as its record spells them; `is_answer` is
    True for a turn of the assistant.
    """
    if "<" not in text:
        return
    if has_videos(record):
        text = mark_videos(text, "")
    lowered = text.lower()
    for found in _MARK.finditer(text):
        name = found["name"].lower()
        if name in _WORDS or name.removesuffix("s") in _WORDS or _has_end(lowered, name):
            continue
        field = _field_of(name, record)
        if field is not None:
            raise DecodeError(
                f"the text has {found[0]} for what `{field}` holds, which is not read; only text "
                "and images are supported"
            )
    if not is_answer and (plain := _PLAIN_MARK.search(text)):
        kind = plain[1].lower()
        if not _has_end(lowered, kind):
            raise DecodeError(
                f"the text has the place of {'a video' if kind == 'video' else 'audio'} "
                f"({plain[0]}); only text and images are supported{frames_remedy(kind)}"
            )


def media_part(part: Mapping[str, Any]) -> str:
    """Return the kind of a part that holds a medium that is not read; "" for other parts.

    Parts of Qwen-Omni may have no type: `{"audio": PATH}`.
    """
    kind = part.get("type")
    if kind is None:
        held = [name for name in sorted(MEDIA_PARTS) if not is_null(part.get(name))]
        alone = not any(name in part for name in ("text", "image", "image_url"))
        return next((name for name in held if alone or _is_medium(part[name])), "")
    return kind if isinstance(kind, str) and kind in MEDIA_PARTS else ""


def _field_of(name: str, record: Mapping[str, Any]) -> str | None:
    """Return the field that a mark stands for, if it holds something that is not read."""
    one = name.removesuffix("s")
    for field, value in record.items():
        lowered = str(field).lower()
        if not lowered.startswith(name) or lowered[len(name) :] not in _FIELDS_OF_MARKS:
            continue
        if (
            _holds(value)
            or (name in _SOUND_FIELDS and value)
            or (one in _SHAPES and _numbers(value))
        ):
            return str(field)
    return None


def _has_end(text: str, name: str) -> bool:
    return any(end in text for end in (f"</{name}>", f"<|/{name}|>", f"<|{name}_end|>"))


def _holds(value: Any, depth: int = _MAX_DEPTH) -> bool:
    """Return whether a value is more than words: a path, an address, bytes or an object."""
    if isinstance(value, str):
        return _is_file(value) or _URL.match(value) is not None
    if isinstance(value, list | tuple):
        return depth > 0 and any(_holds(item, depth - 1) for item in value)
    if isinstance(value, Mapping):
        return not is_null(value)
    return isinstance(value, bytes | bytearray | memoryview) and len(value) > 0


def _is_medium(value: Any, depth: int = _MAX_DEPTH) -> bool:
    """Return whether a value is a video, sound or a document: its bytes, or a file of its kind."""
    if isinstance(value, str):
        if _DATA.match(value):
            return True
        name = value.partition("?")[0].lower()
        return len(name) < _LONGEST_NAME and "\n" not in name and name.endswith(_ENDINGS)
    if isinstance(value, Mapping):
        value = [value.get(name) for name in _FILE_FIELDS]
    if isinstance(value, list | tuple):
        return depth > 0 and any(_is_medium(item, depth - 1) for item in value)
    return isinstance(value, bytes | bytearray | memoryview) and len(value) > 0


def _numbers(value: Any, depth: int = _MAX_DEPTH) -> bool:
    """Return whether a value is a list of numbers, as shapes are."""
    if isinstance(value, list | tuple):
        return depth > 0 and any(_numbers(item, depth - 1) for item in value)
    return depth < _MAX_DEPTH and isinstance(value, int | float) and not isinstance(value, bool)


def _is_file(text: str) -> bool:
    """Return whether a text is the name of a file; one with blanks only of a known medium."""
    if len(text) >= _LONGEST_NAME or "\n" in text:
        return False
    return _FILE_NAME.fullmatch(text) is not None or text.lower().endswith(_ENDINGS)


def is_null(value: Any) -> bool:
    """Return whether a value is null, or an object of nulls alone, as tables leave behind."""
    if isinstance(value, Mapping):
        return all(item is None for item in value.values())
    return value is None
