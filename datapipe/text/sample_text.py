"""The text of a sample, whichever of the common layouts it is kept in.

`<image>` marks the place of an image in a text. A text has as many of them as its sample has
images, in the images' order; or it has none, and then all images come before the text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from datapipe.errors import DecodeError
from datapipe.text.conversation import known_role, raw_turns
from datapipe.text.image_marks import IMAGE_PLACE, mark_places
from datapipe.text.preference import pair_text

TEXT_EXTENSIONS = frozenset({"txt", "text", "caption"})
"""Extensions of members that hold a caption as plain UTF-8 text."""

_CAPTION_FIELDS = ("caption", "text")
_ASKED = ("question", "query", "prompt", "instruction", "problem")
_ANSWERED = ("answer", "response", "output", "completion", "solution")


class TextMembers(NamedTuple):
    """The members of a sample that are its text, as indices among its members."""

    plain: int | None = None  # the caption, such as `txt`; None without one
    # Without a plain one, those with names of their own: one such as `alt.txt`, which is the
    # caption, or a question and its answer; all of them where `unclear` is set
    named: tuple[int, ...] = ()
    unclear: str = ""  # why the named ones are no text of the sample; empty where they are


def find_texts(exts: Sequence[str]) -> TextMembers:
    """Find the text of a sample by the extensions of its members.

    Examples:
        >>> find_texts(["jpg", "answer.txt", "question.txt"])
        TextMembers(plain=None, named=(2, 1), unclear='')
    """
    named: dict[int, str] = {}
    for number, ext in enumerate(exts):
        name, dot, kind = ext.lower().rpartition(".")
        if kind in TEXT_EXTENSIONS:
            if not dot:
                return TextMembers(number)
            named[number] = name
    if not named:
        return TextMembers()
    asked = [number for number, name in named.items() if name in _ASKED]
    answered = [number for number, name in named.items() if name in _ANSWERED]
    if len(asked) == len(answered) == 1:
        return TextMembers(named=(asked[0], answered[0]))
    # A prompt alone is what an image was made from.
    if len(named) == 1 and (not asked or named[asked[0]] == "prompt"):
        return TextMembers(named=tuple(named))
    listed = ", ".join(f"`{exts[number]}`" for number in named)
    return TextMembers(
        named=tuple(named),
        unclear=f"what is to be learnt of its texts ({listed}) cannot be told by their names; name "
        "it `KEY.txt`, or a question and its answer `KEY.question.txt` and `KEY.answer.txt`",
    )


def named_texts_count(texts: int, record: Any) -> bool:
    """Return whether so many texts with names of their own are the text of a sample with a JSON.

    Turns in the JSON go before any such text, a caption in the JSON before a single one.
    """
    if not isinstance(record, Mapping):
        return True
    if texts > 1:
        return raw_turns(record) is None
    return not raw_text(None, record).strip()


def parse_text(data: bytes, member: str = "") -> str:
    """Decode a caption member (UTF-8, with or without a byte order mark); errors name `member`."""
    try:
        # As "utf-8-sig" does, which is written in Python and takes ten times as long.
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        reason = f"text is not UTF-8 at byte {error.start}"
        raise DecodeError(reason, member=member) from error


def encode(text: str) -> bytes:
    """Return a text as UTF-8; `DecodeError` if it has half a character."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:  # a lone surrogate, which JSON can spell
        raise DecodeError(
            f"the text has the lone surrogate U+{ord(text[error.start]):04X} at character "
            f"{error.start}, half of a character that was cut in two, and cannot be written as "
            "UTF-8; repair the text"
        ) from error


def parse_json(data: bytes, member: str = "") -> Any:
    """Decode a JSON member; errors name `member`."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not valid JSON: {error}", member=member) from error


def as_record(record: Any) -> Any:
    """Return what a JSON file holds as a record; a list of turns is one with `messages`."""
    if isinstance(record, list) and raw_turns({"messages": record}):
        return {"messages": record}
    return record


def interleaved(record: Mapping[str, Any]) -> list[str | None] | None:
    """Return the texts of a document, None for each image; None where it is no document.

    Understands OBELICS: lists `texts` and `images` of equal length that are not null in turn.
    """
    texts: Any = record.get("texts")
    images: Any = record.get("images")
    if not is_document(texts, images) or misplaced(texts, images) is not None:
        return None
    return list(texts)


def sample_text(caption: str | None, record: Any) -> str:
    """Return the text of a sample: caption, conversation, document, caption field or two answers.

    A conversation is written as one `role: text` line per turn, which is how it reads where no
    tokenizer and template are given. Roles are "user", "assistant", "system" and "tool", as chat
    templates get them; one that is not known stays as it is. The answers of a preference pair
    follow its prompt as lines of `chosen` and `rejected`. The pieces of a document, `<image>` for
    each image among them, are separated by an empty line, as paragraphs are. Of several `captions`
    it is the first. Places of images are `<image>`, however the sample spells them.
    """
    return mark_places(raw_text(caption, record))


def raw_text(caption: str | None, record: Any) -> str:
    """Return what `sample_text` does, with places of images as the sample spells them."""
    if caption is not None:
        return caption
    if not isinstance(record, Mapping):
        return ""
    if (turns := raw_turns(record)) is not None:
        return "\n".join(
            f"{known_role(role) or role}: {text}" if role else text for role, text, _ in turns
        )
    if (document := interleaved(record)) is not None:
        return "\n\n".join(IMAGE_PLACE if text is None else text for text in document)
    for field in _CAPTION_FIELDS:
        if isinstance(record.get(field), str):
            return str(record[field])
    captions = record.get("captions")
    if isinstance(captions, list) and captions and isinstance(captions[0], str):
        return captions[0]
    return pair_text(record)


def is_question_list(texts: Any) -> bool:
    """Return whether `texts` are questions and answers, as in The Cauldron."""
    return isinstance(texts, list) and bool(texts) and all(map(_is_question, texts))


def _is_question(text: Any) -> bool:
    names = ("user", "assistant")
    return isinstance(text, Mapping) and all(isinstance(text.get(name), str) for name in names)


def is_document(texts: Any, images: Any) -> bool:
    """Return whether `texts` and `images` are lists of one length, as in OBELICS."""
    return (
        isinstance(texts, list)
        and isinstance(images, list)
        and 0 < len(texts) == len(images)
        and all(text is None or isinstance(text, str) for text in texts)
    )


def misplaced(texts: Sequence[Any], images: Sequence[Any]) -> int | None:
    """Return the first index that holds both a text and an image, or neither."""
    pairs = enumerate(zip(texts, images, strict=True))
    return next((n for n, (text, image) in pairs if (text is None) == (image is None)), None)
