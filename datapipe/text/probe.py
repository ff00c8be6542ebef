"""Probes of a chat template: conversations whose rendering shows what it expects and writes."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import replace

from datapipe.errors import DecodeError, PlanError
from datapipe.text.guard import ReservedTokens, one_of
from datapipe.text.layout import TurnLayout
from datapipe.text.messages import RenderedTurn
from datapipe.text.spec import TextSpec
from datapipe.text.template import ChatTemplate
from datapipe.text.templates import IMAGE_TOKENS, SOURCES
from datapipe.text.videos import Video

logger = logging.getLogger(__name__)

# Words that no template writes by itself, nor changes by writing them in capitals.
_ASKED, _MORE, _SAID = "7160483", "7268149", "7381926"
_TURNS = (RenderedTurn("user", [_ASKED]), RenderedTurn("assistant", [_SAID], True))
_SHOWN = (RenderedTurn("user", [_ASKED, None, _MORE]), RenderedTurn("assistant", [_SAID], True))
_VIDEO = Video("", 0, (0.0,), 1.0, 1.0)
_SHOWN_VIDEO = (RenderedTurn("user", [_ASKED, _VIDEO, _MORE]), _SHOWN[1])
# The repr and the JSON of a list of parts, as templates write it that expect strings.
_UNREAD = re.compile(f"['\"]{_ASKED}")


def find_layout(
    template: ChatTemplate,
    spec: TextSpec,
    *,
    guard: ReservedTokens,
    image_token: str | None,
    mark: tuple[str, str],
    video: str | None,
) -> TurnLayout:
    """Find out how to use the chat template of `spec`.

    `image_token` is None where the vocabulary has none. `mark` is how an image is written where the
    template leaves it to us, and what the template writes instead. `video` is how a video is
    written; None where each frame is an image. Raises `PlanError` if the template shows neither
    strings nor lists of parts, refuses the system message that it will be given, writes several
    image tokens for an image, or begins no answer behind a prompt where samples are prompts.
    """
    written, placeholder = mark
    layout = TurnLayout(
        template=template,
        copies=spec.template in SOURCES,
        find=guard.find,
        mark=written,
        video=video,
        ends_line=written.endswith("\n"),
    )
    strings, reason = _shows(layout)
    parts, _ = _shows(replace(layout, parts=True))
    if not strings and not parts:
        raise PlanError(
            "the chat template shows nothing of a user's and an assistant's message, whether they "
            f"are strings or lists of parts{reason}; give template='llava', 'chatml' or a "
            "template for conversations of the roles user and assistant"
        )
    shown = _written_image(layout, image_token, placeholder) if parts and image_token else None
    if shown is not None:
        text, found = shown
        if text.count(found) > 1:
            raise PlanError(
                f"the chat template writes {found!r} {text.count(found)} times for one image; it "
                "must appear once, and is repeated as often as the image has tokens"
            )
        replaced = found != written and written not in text
        layout = replace(
            layout,
            parts=True,
            writes_images=True,
            placeholder=found if replaced else None,
            ends_line=text.endswith("\n") or (replaced and written.endswith("\n")),
        )
    else:
        layout = replace(layout, parts=not strings)
    if spec.video_markup is not None and layout.parts:
        layout = replace(layout, writes_videos=_writes_videos(layout, spec.video_markup.token))
    if spec.system is not None:
        try:
            layout.write([RenderedTurn("system", [spec.system]), *_TURNS])
        except DecodeError as error:
            raise PlanError(
                f"the chat template takes no system message: {error}; leave system= out"
            ) from error
    if spec.prompts:
        _check_prompt(layout)
    turn_end = _find_turn_end(layout, guard)
    return layout if turn_end is None else replace(layout, turn_end=turn_end)


def asked_and_said(layout: TurnLayout) -> str:
    """Return a short conversation as the template writes it."""
    return layout.write(_TURNS)


def shown_image(layout: TurnLayout | None, mark: str) -> str:
    """Return an image between two texts as the template writes it, or as `mark` without one."""
    if layout is not None:
        # A template may refuse images in the middle of a message.
        with contextlib.suppress(DecodeError):
            return layout.render(_SHOWN).write()[0]
    return f"{_ASKED}{mark}{_MORE}"


def image_wrap(
    text: str, ids: list[int], mark: str, image_token: str, guard: ReservedTokens
) -> tuple[int, int]:
    """Return how many special tokens before and after an image's token belong to it.

    They are those of a known model's `mark`, or else one on each side if both are special and
    different from each other. `text`, and `ids` of it, is an image between two texts, so that all
    beside it is its own.
    """
    before, _, after = mark.partition(image_token)
    wrap = (guard.count(before), guard.count(after))
    if mark in text and all(wrap) and before.strip() != after.strip():
        return wrap
    image = guard.id(image_token)
    at = ids.index(image) if ids.count(image) == 1 else 0
    if not 0 < at < len(ids) - 1:
        return 0, 0
    left, right = ids[at - 1], ids[at + 1]
    both = bool(guard.is_special[left]) and bool(guard.is_special[right])
    return (1, 1) if both and left != right else (0, 0)


def _shows(layout: TurnLayout) -> tuple[bool, str]:
    """Return whether a template shows contents in this form, and the error if it raises one."""
    try:
        text = asked_and_said(layout)
    except DecodeError as error:
        return False, f" ({error})"
    return _ASKED in text and _SAID in text and not _UNREAD.search(text), ""


def _written_image(
    layout: TurnLayout, image_token: str, placeholder: str
) -> tuple[str, str] | None:
    """Return what a template writes for an image part, and the image's token in it."""
    asking = replace(layout, parts=True, writes_images=True)
    try:
        without = asked_and_said(replace(layout, parts=True))
        text = asking.write(_SHOWN)
    except DecodeError:
        return None
    for token in (image_token, placeholder, *IMAGE_TOKENS):
        if text.count(token) > without.count(token):
            before, after = text.split(token, 1)
            # As far as the next text of ours: what is written for the image alone.
            before = re.split(f"{_ASKED}|{_MORE}", before)[-1]
            return before + token + re.split(f"{_ASKED}|{_MORE}", after)[0], token
    return None


def _writes_videos(layout: TurnLayout, token: str) -> bool:
    """Return whether a template writes the token of a video itself, once for each."""
    try:
        text = replace(layout, writes_videos=True).write(_SHOWN_VIDEO)
    except DecodeError:
        return False
    return text.count(token) - asked_and_said(layout).count(token) == 1


def _check_prompt(layout: TurnLayout) -> None:
    """Raise `PlanError` if a template begins no answer behind a prompt, though it writes a name."""
    with contextlib.suppress(DecodeError):
        prompt = layout.write(_TURNS[:1], prompt=True)
        said = asked_and_said(layout).partition(_SAID)[0]
        ends, begins = (text.rpartition(_ASKED)[2] for text in (prompt, said))
        if ends.strip() != begins.strip() and prompt == layout.write(_TURNS[:1]):
            raise PlanError(
                f"the chat template writes {begins!r} between a question and its answer, and only "
                f"{ends!r} behind a prompt; write the rest at its end, between {{% if "
                "add_generation_prompt %} and {% endif %}"
            )


def _find_turn_end(layout: TurnLayout, guard: ReservedTokens) -> re.Pattern[str] | None:
    """Return a pattern of what the template writes behind answers, up to a special token.

    None if it writes none there, or marks itself what is learnt.
    """
    if layout.template.marks_generation:
        with contextlib.suppress(DecodeError):
            said = layout.render(_TURNS)
            learnt = [text for start, stop in said.labels for _, text in said.pieces[start:stop]]
            if guard.find("".join(learnt).rpartition(_SAID)[2]) is None:
                logger.warning(
                    "no special token ends the part of an answer that the chat template marks with "
                    "{% generation %}, so a model cannot learn from it where to stop; write the "
                    "token that ends a turn inside of that part"
                )
        return None
    before, _, after = layout.write(_TURNS).rpartition(_SAID)
    last = _first_token(after, guard)
    if last is None:
        logger.warning(
            "the chat template writes no special token after what the assistant says, so a model "
            "cannot learn from it where to stop"
        )
        return None
    ends = {last}
    # An answer that is not the last may end with another token.
    with contextlib.suppress(DecodeError):
        between = layout.write((*_TURNS, *_TURNS)).split(_SAID)[1].partition(_ASKED)[0]
        # Cohere's end in two: `<|END_RESPONSE|><|END_OF_TURN_TOKEN|>`.
        texts = after.lstrip(), between.lstrip()
        while more := guard.find(texts[0][len(last) :]):
            # Some templates always begin an answer at the end.
            begins = more in before.rpartition(_ASKED)[2].lstrip().removeprefix(more)
            if begins or not all(text.startswith(last + more) for text in texts):
                break
            last += more
        ends = {last}
        token = _first_token(between, guard)
        # A single one may begin the user's turn instead.
        if token is not None and guard.count(between) > 1:
            ends.add(token)
    media = one_of(filter(None, _after_media(layout, after)))
    return re.compile(rf"(?P<media>(?:{media})*)(?P<end>\s*{one_of(ends)})")


def _after_media(layout: TurnLayout, after: str) -> Iterator[str]:
    """Yield what the template writes for media that end an answer, before its `after`."""
    for medium in (None, _VIDEO):
        said = RenderedTurn("assistant", [_SAID, medium], True)
        with contextlib.suppress(DecodeError):
            text = layout.write([_TURNS[0], said])
            if text.endswith(after):
                yield text.rpartition(_SAID)[2].removesuffix(after)


def _first_token(text: str, guard: ReservedTokens) -> str | None:
    """Return the special token that a text begins with, but for blanks."""
    token = guard.find(text)
    return token if token is not None and text.lstrip().startswith(token) else None
