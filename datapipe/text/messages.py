"""Turns, or the caption, of a sample, with its images and videos between stretches of text.

A video is one piece, a `Video`, which has the times of its frames. `as_frames` makes the pieces for
models that know no videos: an image for each frame.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from datapipe.errors import DecodeError
from datapipe.text import preference
from datapipe.text.conversation import (
    conversation,
    has_words,
    raw_turns,
    refuse_unread_turns,
)
from datapipe.text.image_marks import IMAGE_PLACE, mark_all
from datapipe.text.other_media import check_marks
from datapipe.text.sample_text import encode, raw_text
from datapipe.text.videos import VIDEO_PLACE, Video, mark_videos, read_videos

Medium = Video | None
"""A video, or None for an image."""

Piece = str | Medium
"""A stretch of text, a video or an image."""

_PLACE = re.compile(f"({IMAGE_PLACE})")
_PLACE_OR_VIDEO = re.compile(f"({IMAGE_PLACE}|{VIDEO_PLACE})")


class SampleText(NamedTuple):
    """The members that make up the text of a sample."""

    # `caption`, `record`: its caption member and its parsed JSON member, None where it has none
    caption: str | None
    record: Any
    images: int  # how many images it has, frames of videos included
    max_frames: int | None = None  # of each video that are among them; None for all


class RenderedTurn(NamedTuple):
    """One message of a conversation, in pieces."""

    role: str  # "user", "assistant", "system" or "tool"
    pieces: list[Piece]  # stretches of text, and videos and None for an image in their places
    trained: bool = False  # True if the model learns to write it


def read_turns(sample: SampleText, *, system: str | None, newline: bool) -> list[RenderedTurn]:
    """Return the turns of a sample.

    What is no conversation becomes one: the images that come first are the user's turn, and the
    rest, a caption or a document with images between its texts, is the assistant's. Without images
    at its beginning the user's turn is empty. A turn without text is not trained, so a sample
    without text has no label. Where the text marks no places, all images come first, in the first
    turn that is not the system's. `<video>` is the place of a whole video.

    `system` goes before a conversation without a system message; if `newline`, a line ends after
    each image or video that is put before a text. Raises `DecodeError` if places differ in number
    from images and videos, the conversation makes no sense, or it is a preference pair.
    """
    found = _conversation(sample)
    if found is None:
        turns = _as_conversation(sample, newline)
    else:
        turns, unmarked = found
        _put_first(turns, unmarked, newline)
    if system is not None and not any(turn.role == "system" for turn in turns):
        turns.insert(0, RenderedTurn("system", [system]))
    return turns


def as_frames(pieces: Iterable[Piece], newline: bool = False) -> list[str | None]:
    r"""Return pieces with an image for each frame of a video, in lines of their own if `newline`.

    Examples:
        >>> as_frames([Video("cat.mp4", 0, (0.0, 0.5), 1.04, 25.0), "What happens?"])
        [None, None, 'What happens?']
    """
    shown: list[str | None] = []
    for piece in pieces:
        if isinstance(piece, Video):
            ends = ["\n"] if newline else []
            shown += [each for _ in piece.times for each in (*ends, None)][newline:]
        else:
            shown.append(piece)
    return shown


def as_text(pieces: Iterable[Piece]) -> str:
    """Return the text of pieces, without images and videos."""
    return "".join(piece for piece in pieces if isinstance(piece, str))


def is_pair(sample: SampleText) -> bool:
    """Return whether a sample is a preference pair, and has no other text that is learnt."""
    record = sample.record
    if sample.caption is not None or not preference.has_answers(record):
        return False
    text = "" if preference.ends_with_answer(record) else preference.pair_text(record)
    return bool(text) and (_has_turns(record) or raw_text(None, record) == text)


def read_pair_turns(
    sample: SampleText, *, system: str | None, newline: bool
) -> tuple[list[RenderedTurn], list[RenderedTurn]]:
    """Return the turns of a preference pair, with its chosen and with its rejected answer.

    Only the answers are trained. Arguments and errors are those of `read_turns`, but that the
    sample has to be a pair, with both answers to be learnt.
    """
    is_object = isinstance(sample.record, Mapping)
    records = preference.pair_records(sample.record) if is_object else None
    if records is None:
        raise DecodeError(
            "the sample is no preference pair: it has no `chosen` and `rejected` answer, as "
            "TextSpec(pairs=True) needs; keep other samples in a separate dataset"
        )
    samples = (sample._replace(caption=None, record=record) for record in records)
    chosen, rejected = (read_turns(each, system=system, newline=newline) for each in samples)
    for name, turns in zip(preference.ANSWERS, (chosen, rejected), strict=True):
        if not any(turn.trained for turn in turns):
            raise DecodeError(
                f"the `{name}` answer of the pair is marked as not learnt; pairs need both answers"
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
        record = preference.prompt_record(sample.record)
        if _has_turns(record):
            sample = sample._replace(caption=None, record=record)
    if sample.caption is not None or not _has_turns(sample.record):
        raise DecodeError(
            "the sample is no conversation, so it has no prompt; pack the field that asks with "
            "--map user=FIELD, or load it without prompts=True"
        )
    turns = read_turns(sample, system=system, newline=newline)
    while turns and turns[-1].role == "assistant":
        if not all(isinstance(piece, str) for piece in turns.pop().pieces):
            raise DecodeError("an answer has an image, which the prompt before it would not have")
    if not any(turn.role == "user" for turn in turns):
        raise DecodeError("the conversation has no turn of the user before its answer")
    return [turn._replace(trained=False) for turn in turns]


def _has_turns(record: Any) -> bool:
    return isinstance(record, Mapping) and raw_turns(record) is not None


def read_caption(sample: SampleText) -> list[Piece]:
    """Return the text of a sample as one caption, its images in place, all first if none is marked.

    Of a conversation it is what the assistant says and the model learns, and the images wherever
    they stand, as in the pretraining of LLaVA, whose questions only ask for a caption. Raises
    `DecodeError` as `read_turns` does.
    """
    found = _conversation(sample)
    if found is None:
        pieces, unmarked = _plain_pieces(sample)
    else:
        turns, unmarked = found
        pieces = []
        for turn in turns:
            if turn.trained:
                said = any(isinstance(piece, str) for piece in pieces)
                pieces += [*(["\n"] if said else []), *turn.pieces]
            else:
                pieces += [piece for piece in turn.pieces if not isinstance(piece, str)]
    return [*unmarked, *pieces]


def _conversation(sample: SampleText) -> tuple[list[RenderedTurn], list[Medium]] | None:
    """Return the turns of a conversation, and its images and videos if it marks no places.

    None for other texts; `DecodeError` for a preference pair.
    """
    if is_pair(sample):
        raise DecodeError(
            "the sample is a preference pair, of a `chosen` and a `rejected` answer; give "
            "TextSpec(pairs=True) to train on both, or pack with --map to take one of them"
        )
    if sample.caption is not None or not isinstance(sample.record, Mapping):
        return None
    turns = conversation(sample.record, images=sample.images)
    if turns is None:
        return None
    pieces, unmarked = _split([turn.text for turn in turns], sample)
    pairs = zip(turns, pieces, strict=True)
    return [RenderedTurn(turn.role, own, turn.trained) for turn, own in pairs], unmarked


def _plain_pieces(sample: SampleText) -> tuple[list[Piece], list[Medium]]:
    text = raw_text(sample.caption, sample.record)
    if isinstance(sample.record, Mapping):
        check_marks(text, sample.record, is_answer=True)
        if sample.caption is None and not text.strip():
            refuse_unread_turns(sample.record)
            preference.refuse_unread_pair(sample.record)
    (pieces,), unmarked = _split(mark_all([text], sample.images), sample)
    return pieces, unmarked


def _as_conversation(sample: SampleText, newline: bool) -> list[RenderedTurn]:
    pieces, leading = _plain_pieces(sample)
    if not leading and sample.images:
        first = list(takewhile(lambda p: not (isinstance(p, str) and p.strip()), pieces))
        leading = [piece for piece in first if not isinstance(piece, str)]
        pieces = pieces[len(first) :]
        if leading and pieces and isinstance(pieces[0], str):
            pieces[0] = pieces[0].lstrip()
    shown: list[Piece] = []
    for number, medium in enumerate(leading):
        shown += ["\n", medium] if newline and number else [medium]
    text = as_text(pieces)
    return [RenderedTurn("user", shown), RenderedTurn("assistant", pieces, has_words(text))]


def _put_first(turns: list[RenderedTurn], media: Sequence[Medium], newline: bool) -> None:
    if not media:
        return
    spoken = [turn for turn in turns if turn.role != "system"]
    first = next((turn for turn in spoken if turn.role == "user"), next(iter(spoken), None))
    if first is None:
        first = RenderedTurn("user", [])
        turns.append(first)
    between = ["\n"] if newline else []
    first.pieces[:0] = [piece for medium in media for piece in (medium, *between)]


def _split(texts: Sequence[str], sample: SampleText) -> tuple[list[list[Piece]], list[Medium]]:
    """Return texts in pieces, and the images and videos of a sample if they mark no places."""
    media = _media(sample)
    place = _PLACE
    if any(media):
        texts, place = [mark_videos(text) for text in texts], _PLACE_OR_VIDEO
    for text in texts:
        encode(text)  # or it is refused
    stretches = [place.split(text) for text in texts]  # every other one is a mark
    _check_places([mark == VIDEO_PLACE for parts in stretches for mark in parts[1::2]], media)
    rest = iter(media)
    pieces: list[list[Piece]] = [
        [next(rest) if number % 2 else part for number, part in enumerate(parts) if part]
        for parts in stretches
    ]
    return pieces, [] if any(len(parts) > 1 for parts in stretches) else media


def _media(sample: SampleText) -> list[Medium]:
    """Return the images and videos of a sample, in order."""
    media: list[Medium] = []
    done = 0
    for video in read_videos(sample.record, sample.images, sample.max_frames):
        media += [*[None] * (video.first - done), video]
        done = video.first + len(video.times)
    return [*media, *[None] * (sample.images - done)]


def _check_places(marks: Sequence[bool], media: Sequence[Medium]) -> None:
    """Raise `DecodeError` if some, but not all media are marked; marks of videos are True."""
    kinds = [medium is not None for medium in media]
    # LLaVA-Video marks a video by `<image>`.
    if not marks or marks == kinds or (len(marks) == len(kinds) and not any(marks)):
        return
    found, there = (
        f"{each.count(False)} {image} and {each.count(True)} {video}"
        for each, image, video in ((marks, IMAGE_PLACE, VIDEO_PLACE), (kinds, "images", "videos"))
    )
    if sorted(marks) == sorted(kinds):
        raise DecodeError(
            f"the text has {found} in another order than the images and videos of the sample; "
            "frames and images have to be in the order of their places"
        )
    if not any(kinds):
        found, there = f"{len(marks)} {IMAGE_PLACE}", f"{len(media)} image{'s' * (len(media) != 1)}"
    raise DecodeError(
        f"the text has {found} and the sample {there}; mark the places of all "
        f"{'images and videos' if any(kinds) else 'images'}, or of none to have them come first"
    )
