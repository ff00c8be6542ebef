"""Turns, or the caption, of a sample, with its images between stretches of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from datapipe.errors import DecodeError
from datapipe.text.conversation import conversation, has_words, raw_turns
from datapipe.text.image_marks import IMAGE_PLACE, mark_all
from datapipe.text.other_media import check_marks
from datapipe.text.preference import (
    ends_with_answer,
    has_answers,
    pair_records,
    pair_text,
    prompt_record,
)
from datapipe.text.sample_text import raw_text

Piece = str | None
"""A stretch of text, or None for an image."""


class SampleText(NamedTuple):
    """The members that make up the text of a sample."""

    # `caption`, `record`: its caption member and its parsed JSON member, None where it has none
    caption: str | None
    record: Any
    images: int  # how many images it has


class RenderedTurn(NamedTuple):
    """One message of a conversation, in pieces."""

    role: str  # "user", "assistant", "system" or "tool"
    pieces: list[Piece]  # stretches of text, None at the places of images
    trained: bool = False  # True if the model learns to write it


def read_turns(sample: SampleText, *, system: str | None, newline: bool) -> list[RenderedTurn]:
    """Return the turns of a sample.

    What is no conversation becomes one: the images that come first are the user's turn, and the
    rest, a caption or a document with images between its texts, is the assistant's. Without images
    at its beginning the user's turn is empty. A turn without text is not trained, so a sample
    without text has no label. Where the text marks no places, all images come first, in the first
    turn that is not the system's.

    `system` goes before a conversation without a system message; if `newline`, a line ends after
    each image that is put before a text. Raises `DecodeError` if places and images differ in
    number, the conversation makes no sense, or it is a preference pair.
    """
    _refuse_pair(sample)
    turns = _conversation(sample)
    if turns is None:
        turns = _as_conversation(sample, newline)
    else:
        _place_images(turns, sample.images, newline)
    if system is not None and not any(turn.role == "system" for turn in turns):
        turns.insert(0, RenderedTurn("system", [system]))
    return turns


def is_pair(sample: SampleText) -> bool:
    """Return whether a sample is a preference pair, and has no other text that is learnt."""
    record = sample.record
    if sample.caption is not None or not has_answers(record) or ends_with_answer(record):
        return False
    text = pair_text(record)
    return bool(text) and (_has_turns(record) or raw_text(None, record) == text)


def read_pair_turns(
    sample: SampleText, *, system: str | None, newline: bool
) -> tuple[list[RenderedTurn], list[RenderedTurn]]:
    """Return the turns of a preference pair, with its chosen and with its rejected answer.

    Only the answers are trained. Arguments and errors are those of `read_turns`, but that the
    sample has to be a pair.
    """
    records = pair_records(sample.record) if isinstance(sample.record, Mapping) else None
    if records is None:
        raise DecodeError(
            "the sample is no preference pair: it has no `chosen` and `rejected` answer, as "
            "TextSpec(pairs=True) needs; keep other samples in a dataset of their own"
        )
    chosen, rejected = (
        read_turns(SampleText(None, record, sample.images), system=system, newline=newline)
        for record in records
    )
    return chosen, rejected


def read_prompt_turns(
    sample: SampleText, *, system: str | None, newline: bool
) -> list[RenderedTurn]:
    """Return the turns of a sample before the answer that ends it. None is trained.

    Of a preference pair it is the prompt. Arguments and errors are those of `read_turns`, and
    something has to be asked.
    """
    if isinstance(sample.record, Mapping):
        record = prompt_record(sample.record)
        if _has_turns(record):
            sample = SampleText(None, record, sample.images)
    if sample.caption is not None or not _has_turns(sample.record):
        raise DecodeError(
            "the sample is no conversation, so it has no prompt; pack the field that asks with "
            "--map user=FIELD, or load it without prompts=True"
        )
    turns = read_turns(sample, system=system, newline=newline)
    while turns and turns[-1].role == "assistant":
        if None in turns.pop().pieces:
            raise DecodeError("an answer has an image, which the prompt before it would not have")
    if not any(turn.role == "user" for turn in turns):
        raise DecodeError("the conversation has no turn of the user before its answer")
    return [turn._replace(trained=False) for turn in turns]


def _refuse_pair(sample: SampleText) -> None:
    if is_pair(sample):
        raise DecodeError(
            "the sample is a preference pair, of a `chosen` and a `rejected` answer; give "
            "TextSpec(pairs=True) to train on both, or pack with --map to take one of them"
        )


def _has_turns(record: Any) -> bool:
    return isinstance(record, Mapping) and raw_turns(record) is not None


def read_caption(sample: SampleText) -> list[Piece]:
    """Return the text of a sample as one caption, its images in place, all first if none is marked.

    Of a conversation it is what the assistant says and the model learns, and the images wherever
    they stand, as in the pretraining of LLaVA, whose questions only ask for a caption. Raises
    `DecodeError` as `read_turns` does.
    """
    _refuse_pair(sample)
    turns = _conversation(sample)
    if turns is None:
        pieces = _plain_pieces(sample)
    else:
        pieces = []
        for turn in turns:
            if turn.trained:
                said = any(piece is not None for piece in pieces)
                pieces += [*(["\n"] if said else []), *turn.pieces]
            else:
                pieces += [piece for piece in turn.pieces if piece is None]
    marked = _check_places(pieces, sample.images)
    return pieces if marked else [*([None] * sample.images), *pieces]


def _conversation(sample: SampleText) -> list[RenderedTurn] | None:
    if sample.caption is not None or not isinstance(sample.record, Mapping):
        return None
    turns = conversation(sample.record, images=sample.images)
    if turns is None:
        return None
    return [RenderedTurn(turn.role, _split(turn.text), turn.trained) for turn in turns]


def _plain_pieces(sample: SampleText) -> list[Piece]:
    text = raw_text(sample.caption, sample.record)
    if isinstance(sample.record, Mapping):
        check_marks(text, sample.record, is_answer=True)
    return _split(mark_all([text], sample.images)[0])


def _as_conversation(sample: SampleText, newline: bool) -> list[RenderedTurn]:
    pieces = _plain_pieces(sample)
    leading = sample.images
    if _check_places(pieces, sample.images):
        first = next(
            (i for i, piece in enumerate(pieces) if piece is not None and piece.strip()),
            len(pieces),
        )
        leading = pieces[:first].count(None)
        pieces = pieces[first:]
        if leading and pieces:
            pieces[0] = (pieces[0] or "").lstrip()
    shown: list[Piece] = []
    for number in range(leading):
        shown += ["\n", None] if newline and number else [None]
    text = "".join(piece for piece in pieces if piece is not None)
    return [RenderedTurn("user", shown), RenderedTurn("assistant", pieces, has_words(text))]


def _place_images(turns: list[RenderedTurn], images: int, newline: bool) -> None:
    if _check_places([piece for turn in turns for piece in turn.pieces], images) or not images:
        return
    spoken = [turn for turn in turns if turn.role != "system"]
    first = next((turn for turn in spoken if turn.role == "user"), next(iter(spoken), None))
    if first is None:
        first = RenderedTurn("user", [])
        turns.append(first)
    first.pieces[:0] = ([None, "\n"] if newline else [None]) * images


def _check_places(pieces: Sequence[Piece], images: int) -> bool:
    """Return whether the places of images are marked; raise if they are not as many as images."""
    marked = sum(piece is None for piece in pieces)
    if marked not in (0, images):
        raise DecodeError(
            f"the text has {marked} {IMAGE_PLACE} and the sample {images} images; mark the places "
            "of all images, or of none to have them come first"
        )
    return marked > 0


def _split(text: str) -> list[Piece]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DecodeError(
            f"the text has the lone surrogate U+{ord(text[error.start]):04X} at character "
            f"{error.start}, half of a character that was cut in two; repair the text"
        ) from error
    pieces: list[Piece] = []
    for stretch in text.split(IMAGE_PLACE):
        pieces += [None, stretch] if stretch else [None]
    return pieces[1:]
