"""Conversations as text in pieces, each with its author and whether it is learnt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from datapipe.errors import DecodeError
from datapipe.text.markup import Shown, VideoMarkup, write_video
from datapipe.text.messages import Medium, RenderedTurn, as_frames, as_text
from datapipe.text.messages import Piece as TurnPiece
from datapipe.text.template import ANSWER, ChatTemplate, Kind, Message, Parsed, Piece, Span

Marks = Literal["none", "whole", "inner"]
"""Around contents: no marks; around them whole; or inside of the blanks at their ends."""

_NOT_FOUND = (
    "the chat template rewrites this conversation, so the assistant's text cannot be found in "
    "it; mark it in the template with {% generation %} and {% endgeneration %}"
)
_FIRST_TAG = re.compile(r"\s*(<[^<>\s]+>)")


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text of a sample."""

    pieces: list[Piece]  # (who wrote it, text), concatenated
    labels: list[Span]  # (start, stop) of pieces that are learnt
    shown: tuple[Shown, ...] = ()  # what each token of an image or a video stands for

    def with_videos(self, media: Sequence[Medium], markup: VideoMarkup) -> Rendered:
        """Return the text with what the model expects for each of its videos.

        `media` are its images and videos in their order. Raises `DecodeError` as `markup` does.
        """
        written = [
            ("", [Shown(1)]) if each is None else write_video(markup, each.times) for each in media
        ]
        videos = (text for text, _ in written if text)
        token = re.escape(markup.token)
        pieces: list[Piece] = [
            (kind, text)
            if kind in (Kind.CONTENT, Kind.ANSWER)
            # As far as there are videos.
            else (kind, re.sub(token, lambda found: next(videos, found[0]), text))
            for kind, text in self.pieces
        ]
        shown = tuple(each for _, tokens in written for each in tokens)
        return replace(self, pieces=pieces, shown=shown)

    def write(self, spell: Callable[[str], str] | None = None) -> tuple[str, list[Span]]:
        """Return the text, with special tokens as `spell` writes them, and the spans of labels."""
        texts = [
            text if spell is None or kind in (Kind.CONTENT, Kind.ANSWER) else spell(text)
            for kind, text in self.pieces
        ]
        ends = _ends(texts)
        return "".join(texts), [(ends[start], ends[stop]) for start, stop in self.labels]


@dataclass(frozen=True, kw_only=True)
class TurnLayout:
    """The form in which a template takes conversations, and what is done with its text."""

    template: ChatTemplate
    copies: bool  # the template is known to copy contents as they are, so that needs no check
    find: Callable[[str], str | None]  # returns the first token in a text that means something
    mark: str  # how an image is written
    placeholder: str | None = None  # what the template writes for an image, to put `mark` there
    video: str | None  # how a video is written; None writes an image for each of its frames
    parts: bool = False  # contents are lists of parts, else strings
    writes_images: bool = False  # the template writes the images among the parts itself
    writes_videos: bool = False  # the template writes the videos among the parts itself
    ends_line: bool  # an image is followed by a newline that the template or the mark writes
    # what follows the assistant's text: `media` that the content ends in, and the `end`, which is
    # learnt with it; nothing by default
    turn_end: re.Pattern[str] = re.compile("(?!)")

    @property
    def newline(self) -> bool:
        """True if images that are put before a text, and frames, stand in lines of their own."""
        return not self.writes_images and not self.mark.endswith("\n")

    def render(self, turns: Sequence[RenderedTurn], *, prompt: bool = False) -> Rendered:
        """Return the text of a conversation, and the beginning of an answer if `prompt`.

        Raises `DecodeError` if the template refuses it, or rewrites it beyond recognition.
        """
        if self.copies:
            parsed = self.parse(turns, "whole", prompt=prompt)
            assert parsed is not None
        else:
            rendered = self.write(turns, prompt=prompt)
            parsed = self._parse_copied(turns, rendered, prompt)
            if parsed is None:
                return self._render_rewritten(turns, rendered, prompt)
        pieces = parsed.pieces
        if self.template.marks_generation:
            # A turn that is not trained is marked as content that was given.
            labels = [
                (start, stop)
                for start, stop in parsed.generated
                if any(kind is Kind.ANSWER for kind, _ in pieces[start:stop])
            ]
        else:
            pieces, labels = _answers(pieces, self.turn_end)
        return self._rendered(pieces, labels)

    def _rendered(self, pieces: list[Piece], labels: list[Span]) -> Rendered:
        if self.placeholder is not None:
            pieces = [
                (kind, text.replace(self.placeholder, self.mark) if kind is Kind.TEMPLATE else text)
                for kind, text in pieces
            ]
        return Rendered(pieces, labels)

    def write(self, turns: Sequence[RenderedTurn], *, prompt: bool = False) -> str:
        """Return what the template writes for turns, and the beginning of an answer if `prompt`."""
        return self.template.render(self.messages(turns), prompt=prompt)

    def parse(
        self, turns: Sequence[RenderedTurn], marks: Marks, *, prompt: bool = False
    ) -> Parsed | None:
        """Return the same in pieces by their `marks`; None where the template tears those apart."""
        return self.template.parse(self.messages(turns, marks), prompt=prompt)

    def messages(self, turns: Iterable[RenderedTurn], marks: Marks = "none") -> list[Message]:
        """Return turns as the template takes them."""
        return [{"role": turn.role, "content": self._content(turn, marks)} for turn in turns]

    def _content(self, turn: RenderedTurn, marks: Marks) -> str | list[Message]:
        author = Kind.ANSWER if turn.trained else Kind.CONTENT
        parts: list[Message] = []
        after_image = False
        pieces = turn.pieces if self.video else as_frames(turn.pieces, self.newline)
        for piece in pieces or [""]:
            if isinstance(piece, str):
                if after_image and self.ends_line and piece.startswith("\n"):
                    piece = piece[1:]
                    if not piece:
                        continue
                part = {"type": "text", "text": _marked(piece, author, marks)}
            else:
                kind, mark, writes = "image", self.mark, self.writes_images
                if piece is not None and self.video:
                    kind, mark, writes = "video", self.video, self.writes_videos
                marked = mark if marks == "none" else Kind.IMAGE.mark(mark)
                part = {"type": kind} if writes else {"type": "text", "text": marked}
            after_image = piece is None
            if parts and part["type"] == parts[-1]["type"] == "text":
                parts[-1]["text"] += part["text"]
            else:
                parts.append(part)
        return parts if self.parts else "".join(part["text"] for part in parts)

    def _parse_copied(
        self, turns: Sequence[RenderedTurn], rendered: str, prompt: bool
    ) -> Parsed | None:
        """Return the pieces of `rendered`; None where the template rewrites contents."""
        styles: tuple[Marks, ...] = ("whole", "inner")
        for marks in styles:
            # A template that looks into contents may take offence at a mark.
            with suppress(DecodeError):
                parsed = self.parse(turns, marks, prompt=prompt)
                if parsed is not None and parsed.text == rendered:
                    return parsed
        return None

    def _render_rewritten(
        self, turns: Sequence[RenderedTurn], rendered: str, prompt: bool
    ) -> Rendered:
        """Return the text of a template that takes contents apart, such as to move `<think>`.

        The authors of its pieces are unknown, so contents must not spell special tokens.
        """
        for turn in turns:
            if (token := self.find(as_text(turn.pieces))) is not None:
                raise DecodeError(
                    f"the text spells the token {token!r}, and the chat template rewrites this "
                    "conversation, so it cannot be told from the template's own"
                )
        answers = [
            found
            for number, turn in enumerate(turns)
            if turn.trained and (found := self._find_answer(turns, number, rendered)) is not None
        ]
        if not self.template.marks_generation:
            return self._rendered(*_cut_out(rendered, answers))
        parsed = self.parse(turns, "none", prompt=prompt)
        if parsed is None or parsed.text != rendered:
            raise DecodeError(
                "the chat template's {% generation %} blocks overlap, or it changes their text"
            )
        # Of what the template has generated, the answers that are learnt.
        ends = _ends([text for _, text in parsed.pieces])
        labels = [
            (first, last)
            for first, last in parsed.generated
            if any(ends[first] < stop and start < ends[last] for start, stop in answers)
        ]
        return self._rendered(parsed.pieces, labels)

    def _find_answer(
        self, turns: Sequence[RenderedTurn], number: int, rendered: str
    ) -> Span | None:
        """Return (start, stop) of an answer and the end of its turn, in what the template wrote.

        A mark is rendered in the answer's place: what the template writes around the mark is what
        it writes around the answer. None where nothing is left of the answer; `DecodeError` if it
        cannot be found.
        """
        pieces = self.write(_with_answer(turns, number, ANSWER)).split(ANSWER)
        before, after = pieces[0], pieces[-1]
        if len(pieces) == 1 or not rendered.endswith(after):
            raise DecodeError(_NOT_FOUND)
        start, stop = len(before), len(rendered) - len(after)
        if not rendered.startswith(before):
            if rendered == self.write(_with_answer(turns, number, "")):
                return None
            start = self._find_start(turns, number, rendered, _common(before, rendered))
        if not rendered[start:stop].strip():
            return None
        end = self.turn_end.match(rendered, stop)
        return start, end.end() if end else stop

    def _find_start(
        self, turns: Sequence[RenderedTurn], number: int, rendered: str, common: int
    ) -> int:
        """Return where an answer starts that the template writes another beginning for.

        Templates for reasoning do: `<think>` is theirs where the answer has none. The first
        `common` characters of `rendered` are the same before any other answer.
        """
        if self.template.marks_generation:
            return common  # the blocks say it exactly
        done = ""
        if number:
            done, prompt = self.write(turns[:number]), self.write(turns[:number], prompt=True)
            if rendered.startswith(prompt) and prompt != done:
                return len(prompt)
        tag = _FIRST_TAG.match(as_text(turns[number].pieces))
        start = rendered.rfind(tag[1], _common(done, rendered), common) if tag else -1
        if start < 0:
            raise DecodeError(_NOT_FOUND)
        return start


def caption_layout(pieces: Sequence[TurnPiece], mark: str, video: str | None) -> Rendered:
    """Return a caption with its images; all of its text is learnt.

    `video` is how a video is written; None writes an image for each of its frames.
    """
    written: list[Piece] = []
    for piece in pieces if video else as_frames(pieces):
        if isinstance(piece, str):
            written.append((Kind.ANSWER, piece))
        else:
            written.append((Kind.IMAGE, mark if piece is None or video is None else video))
    labels = [(i, i + 1) for i, (kind, _) in enumerate(written) if kind is Kind.ANSWER]
    return Rendered(written, labels)


def _common(first: str, second: str) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))


def _ends(texts: Iterable[str]) -> list[int]:
    """Return 0 and where each text ends among all, concatenated."""
    return list(accumulate(map(len, texts), initial=0))


def _with_answer(turns: Sequence[RenderedTurn], number: int, text: str) -> list[RenderedTurn]:
    """Return the turns with another text for one of them; its images stay."""
    turn = turns[number]
    pieces = [text if isinstance(piece, str) and piece.strip() else piece for piece in turn.pieces]
    return [*turns[:number], turn._replace(pieces=pieces), *turns[number + 1 :]]


def _cut_out(text: str, answers: Sequence[Span]) -> tuple[list[Piece], list[Span]]:
    """Return a text in pieces, cut at its answers, and which of them are learnt."""
    pieces: list[Piece] = []
    labels: list[Span] = []
    done = 0
    for start, stop in answers:
        if start < done:
            raise DecodeError(_NOT_FOUND)
        pieces += [(Kind.TEMPLATE, text[done:start]), (Kind.TEMPLATE, text[start:stop])]
        labels.append((len(pieces) - 1, len(pieces)))
        done = stop
    pieces.append((Kind.TEMPLATE, text[done:]))
    return pieces, labels


def _marked(text: str, author: Kind, marks: Marks) -> str:
    if marks != "inner":
        return text if marks == "none" else author.mark(text)
    core = text.strip()
    return text.replace(core, author.mark(core), 1) if core else text


def _answers(pieces: list[Piece], turn_end: re.Pattern[str]) -> tuple[list[Piece], list[Span]]:
    """Cut pieces behind the end of each of the assistant's turns; say which are learnt."""
    cut: list[Piece] = []
    labels: list[Span] = []
    answered = False
    for kind, text in pieces:
        if answered and kind is Kind.TEMPLATE and (end := turn_end.match(text)):
            if end["media"]:
                cut.append((kind, end["media"]))
            start, stop = labels.pop() if labels[-1][1] == len(cut) else (len(cut), len(cut))
            cut.append((kind, end["end"]))
            labels.append((start, stop + 1))
            text = text[end.end() :]
        answered = kind is Kind.ANSWER or (answered and kind is Kind.IMAGE)
        if text or kind is Kind.ANSWER:
            cut.append((kind, text))
        if kind is Kind.ANSWER:
            labels.append((len(cut) - 1, len(cut)))
    return cut, labels
