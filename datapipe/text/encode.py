"""Tokens of the texts of samples, with the positions of images and the labels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256

import numpy as np
from tokenizers import Encoding, Tokenizer

from datapipe.array_types import Bools, Int32
from datapipe.errors import DecodeError, PlanError
from datapipe.text import messages
from datapipe.text.guard import ReservedTokens, check_spelling
from datapipe.text.image_marks import IMAGE_PLACE
from datapipe.text.layout import Rendered, TurnLayout, caption_layout
from datapipe.text.markup import Shown, frames_at, patch_end
from datapipe.text.messages import Piece, RenderedTurn, SampleText
from datapipe.text.probe import asked_and_said, find_layout, image_wrap, shown_image
from datapipe.text.spec import TextSpec
from datapipe.text.template import ChatTemplate, Kind, Message, Span
from datapipe.text.templates import BEGINS_WITH_BOS, CAPTION, image_mark
from datapipe.text.vocabulary import find_image_token, find_template, open_vocabulary

__all__ = ["ENCODER_VERSION", "EncodedText", "SampleText", "TextEncoder"]

ENCODER_VERSION = 8
"""Changes whenever equal texts and options would give other tokens, image positions or labels."""


@dataclass(frozen=True, slots=True)
class EncodedText:
    """The text of one sample, T tokens without those of its P images."""

    tokens: Int32  # int32 [T]
    image_at: Int32  # int32 [P], ascending; tokens of image i stand before `tokens[image_at[i]]`
    trained: Bools  # bool [T], which tokens the model learns to write
    # Of a preference pair, the text with the rejected answer, with the same images at the same
    # positions; the other fields have the chosen one
    rejected: EncodedText | None = None


class TextEncoder:
    """Encoder of texts into tokens as a `TextSpec` says; several threads may use it at once.

    Attributes:
        spec: what it was made from.
        digest: hex SHA-256 of all that decides tokens, positions and labels. The token count of an
            image, and what is done with long samples, are not part of it.
        image_token, image_id: what is repeated for an image; None where the vocabulary has none.
        image_wrap: text tokens before and after an image that belong to it, such as
            `<|vision_start|>` and `<|vision_end|>`.
        video_id, video_wrap: likewise of a video.
        eos_id: end of a sequence, None where the tokenizer names none.
        pad_id: for padding; where the tokenizer names none, that of the end of a sequence, or 0.
        vocab_size: one more than the largest id.

    Raises:
        PlanError: tokenizer or template cannot be read, or do not fit each other.
    """

    def __init__(self, spec: TextSpec) -> None:
        self.spec = spec
        vocabulary = open_vocabulary(spec.tokenizer)
        self._tokenizer = vocabulary.tokenizer
        self.image_token = find_image_token(spec.image_token, vocabulary)
        self._markup = markup = spec.video_markup
        video_token = None if markup is None else markup.token
        self._guard = ReservedTokens(vocabulary, self.image_token, video_token)
        self.vocab_size = self._guard.size
        self.image_id = (
            None if self.image_token is None else self._tokenizer.token_to_id(self.image_token)
        )
        self.eos_id = vocabulary.id("eos_token")
        padding = (vocabulary.id("pad_token"), self.eos_id, 0)
        self.pad_id = next(number for number in padding if number is not None)
        mark = ("", "")
        if self.image_token is not None:
            mark = image_mark(self.image_token, vocabulary.added)
            if spec.image_markup is not None:  # which holds all that stands around
                mark = self.image_token, self.image_token
        self._mark = mark[0]
        self.video_id = None if video_token is None else self._tokenizer.token_to_id(video_token)
        self._video = None
        if video_token is not None:  # it stands where an image would
            self._video = mark[0].replace(self.image_token or "", video_token) or video_token
        self._layout: TurnLayout | None = None
        self._begin: tuple[int, ...] = ()
        self._end: tuple[int, ...] = ()
        source: str = CAPTION
        names: dict[str, str] = {}
        if spec.template == CAPTION:
            if self.eos_id is None:
                raise PlanError(
                    "template='caption' ends texts with the end-of-sequence token, and the "
                    "tokenizer names none; give a folder whose tokenizer_config.json has eos_token"
                )
            self._begin, self._end = vocabulary.begin, (self.eos_id,)
        else:
            source = find_template(spec.template, vocabulary)
            template = ChatTemplate(source, vocabulary.names)
            names = template.names
            if spec.template in BEGINS_WITH_BOS:
                self._begin = vocabulary.begin
            self._layout = find_layout(
                template,
                spec,
                guard=self._guard,
                image_token=self.image_token,
                mark=mark,
                video=self._video,
            )
            self._check_special_tokens(self._layout)
            bos = names.get("bos_token")
            if spec.add_bos and not (bos and asked_and_said(self._layout).startswith(bos)):
                self._begin = vocabulary.begin
        self.image_wrap = (0, 0)
        if self.image_token is not None:
            text = shown_image(self._layout, self._mark)
            self.image_wrap = image_wrap(
                text, self.ids(text), self._mark, self.image_token, self._guard
            )
        before, after = self.image_wrap
        self.video_wrap = before, after + len(self.ids(patch_end(markup)))
        around = (*self._begin, *self._end)
        deciding = [ENCODER_VERSION, vocabulary.model, source, names, self.image_token]
        deciding += [spec.system, around, IMAGE_PLACE]
        if spec.image_markup is not None:
            deciding.append("image_markup")
        deciding += [] if markup is None else [repr(markup)]
        deciding += [name for name in ("pairs", "prompts") if getattr(spec, name)]
        self.digest = sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()

    def __reduce__(self) -> tuple[object, ...]:
        # A compiled template cannot be pickled, and is quickly made again.
        return (_made_again, (self.spec, self.digest))

    @cached_property
    def vocabulary(self) -> str:
        """Hex SHA-256 of the tokenizer: of what a token means, and how texts are cut into them."""
        model = json.dumps(json.loads(self._tokenizer.to_str()), sort_keys=True)
        return sha256(model.encode()).hexdigest()

    def encode(self, texts: Sequence[SampleText]) -> list[EncodedText | DecodeError]:
        """Encode samples, or say why not; `PlanError` for images without a token to stand for."""
        encoded = self._encode([text for sample in texts for text in self._render(sample)])
        if not self.spec.pairs:
            return encoded
        return list(map(self._pair, encoded[::2], encoded[1::2]))

    def _pair(
        self, chosen: EncodedText | DecodeError, rejected: EncodedText | DecodeError
    ) -> EncodedText | DecodeError:
        if isinstance(chosen, DecodeError):
            return chosen
        if isinstance(rejected, DecodeError):
            return rejected
        # Truncation then cuts the same images of both.
        common = 1 + (int(chosen.image_at[-1]) + self.image_wrap[1] if len(chosen.image_at) else 0)
        alike = np.array_equal(chosen.image_at, rejected.image_at)
        if not alike or not np.array_equal(chosen.tokens[:common], rejected.tokens[:common]):
            return DecodeError(
                "the two answers of the pair have images at other positions; images belong to the "
                "prompt, and the template must write it alike before both"
            )
        if not (chosen.trained.any() and rejected.trained.any()) or chosen.trained[0]:
            return DecodeError(
                "the template leaves out the prompt of the pair, or one of its answers"
            )
        return replace(chosen, rejected=rejected)

    def _encode(self, texts: Sequence[Rendered | DecodeError]) -> list[EncodedText | DecodeError]:
        written = [text.write() for text in texts if isinstance(text, Rendered)]
        made = zip(_encode(self._tokenizer, [text for text, _ in written]), written, strict=True)
        results: list[EncodedText | DecodeError] = []
        for text in texts:
            if isinstance(text, DecodeError):
                results.append(text)
                continue
            encoding, (_, labels) = next(made)
            if isinstance(encoding, DecodeError):
                results.append(encoding)
                continue
            found = self._finish(text, np.array(encoding.ids, np.int32), encoding, labels)
            results.append(self._encode_apart(text) if found is None else found)
        return results

    def messages(self, sample: SampleText) -> list[Message]:
        """Return the conversation of a sample as the chat template takes it, or `DecodeError`."""
        assert self._layout is not None, "template='caption' takes no messages"
        return self._layout.messages(self._turns(sample, self._layout)[0])

    def _turns(self, sample: SampleText, layout: TurnLayout) -> Sequence[list[RenderedTurn]]:
        """Return the turns of a sample; of a pair with its chosen and with its rejected answer."""
        system = self.spec.system
        newline = layout.newline
        if self.spec.pairs:
            return messages.read_pair_turns(sample, system=system, newline=newline)
        read = messages.read_prompt_turns if self.spec.prompts else messages.read_turns
        return [read(sample, system=system, newline=newline)]

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a text, in which special tokens are meant."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def spell(self, ids: Sequence[int]) -> tuple[str, bool]:
        """Return the text of tokens within a text, and whether the first of them is special."""
        if self._guard.is_special[ids[0]]:
            return str(self._tokenizer.id_to_token(ids[0])), True
        # Some decoders drop a space in front of the first token.
        first = self.ids("a")
        texts = [
            self._tokenizer.decode(each, skip_special_tokens=False)
            for each in (first, [*first, *ids])
        ]
        return texts[1].removeprefix(texts[0]), False

    def _check_special_tokens(self, layout: TurnLayout) -> None:
        text = asked_and_said(layout)
        meant = self._guard.count(text)
        found = int(np.count_nonzero(self._guard.is_special[self.ids(text)]))
        if found != meant:
            raise PlanError(
                f"the chat template writes {meant} special tokens around a question and an answer, "
                f"and the tokenizer finds {found} of them in {text!r}; it may change their letters "
                'before it looks for them: set "normalized": false for them in tokenizer.json'
            )

    def _render(self, sample: SampleText) -> list[Rendered | DecodeError]:
        """Return the text of a sample, or two of a pair, as `_turns` does."""
        if sample.images and self.image_token is None:
            raise PlanError(
                "a sample has images, and the vocabulary has none of the tokens that models are "
                "known to repeat for an image; name it with image_token=, and add it to the "
                "tokenizer if necessary"
            )
        layout, spec = self._layout, self.spec
        try:
            if layout is None:
                pieces = messages.read_caption(sample)
                rendered = caption_layout(pieces, self._mark, self._video)
                return [self._with_media(rendered, pieces, sample.images)]
            return [
                self._with_media(
                    layout.render(turns, prompt=spec.prompts),
                    [piece for turn in turns for piece in turn.pieces],
                    sample.images,
                )
                for turns in self._turns(sample, layout)
            ]
        except DecodeError as error:
            return [error] * (1 + spec.pairs)

    def _with_media(self, rendered: Rendered, pieces: Sequence[Piece], images: int) -> Rendered:
        media = [piece for piece in pieces if not isinstance(piece, str)]
        if self._markup is None or not any(media):
            return replace(rendered, shown=(Shown(1),) * images)
        if self.video_id is None:
            raise PlanError(
                f"a sample has a video, and {self._markup.token!r} is not in the vocabulary; add "
                "it to the tokenizer, or leave video_markup= out"
            )
        return rendered.with_videos(media, self._markup)

    def _encode_apart(self, rendered: Rendered) -> EncodedText | DecodeError:
        """Encode a text that spells special tokens, which mean nothing there."""
        try:
            for _, text in rendered.pieces:
                check_spelling(text)
        except DecodeError as error:
            return error
        tokenizer, meaning = self._guard.apart
        text, labels = rendered.write(self._guard.spell)
        (encoding,) = _encode(tokenizer, [text])
        if isinstance(encoding, DecodeError):
            return encoding
        ids = meaning[np.array(encoding.ids, np.int64)]
        result = self._finish(rendered, ids, encoding, labels)
        if result is not None:
            return result
        images = np.count_nonzero((ids == self.image_id) | (ids == self.video_id))
        if images != (meant := len(rendered.shown)):
            return DecodeError(
                f"the template wrote {images} images, the sample has {meant}; it leaves out or "
                "repeats images of some roles"
            )
        return DecodeError("the tokenizer does not find the special tokens that the template wrote")

    def _finish(
        self, rendered: Rendered, ids: Int32, encoding: Encoding, labels: list[Span]
    ) -> EncodedText | DecodeError | None:
        """Return tokens without images; None where special tokens are not those that are meant."""
        images = np.flatnonzero((ids == self.image_id) | (ids == self.video_id))
        meant = sum(
            self._guard.count(text)
            for kind, text in rendered.pieces
            if kind in (Kind.TEMPLATE, Kind.IMAGE)
        )
        visual = [self.video_id if each.is_video else self.image_id for each in rendered.shown]
        if ids[images].tolist() != visual or meant != np.count_nonzero(self._guard.is_special[ids]):
            return None
        trained = np.zeros(len(ids), np.bool_)
        for start, stop in labels:
            trained[self._tokens_of(encoding, ids, start, stop)] = True
        if self.spec.pairs and trained.any():
            trained[int(trained.argmax()) :] = True  # a completion is all that follows the prompt
        if len(images):
            keep = np.ones(len(ids), np.bool_)
            keep[images] = False
            ids, trained = ids[keep], trained[keep]
            images = images - np.arange(len(images))
            if self.video_id in visual:
                images = frames_at(images, rendered.shown, self.ids)
        if self._begin or self._end:
            begin, end = len(self._begin), len(self._end)
            ids = np.concatenate([self._begin, ids, self._end]).astype(np.int32)
            # Where nothing is learnt, the end of the sequence is not either.
            ends = np.full(end, bool(trained.any()))
            trained = np.concatenate([np.zeros(begin, np.bool_), trained, ends])
            images = images + begin
        if not len(ids) and not len(images):
            return DecodeError("the sample has neither text nor images")
        return EncodedText(ids, images.astype(np.int32), trained)

    def _tokens_of(self, encoding: Encoding, ids: Int32, start: int, stop: int) -> slice:
        """Return the tokens that the characters `start` to `stop` are in.

        Where a character is in no token, as normalizers leave some out, the next one inside counts.
        """
        first = last = None
        left, right = start, stop
        while left < right and (first := encoding.char_to_token(left)) is None:
            left += 1
        while left < right and (last := encoding.char_to_token(right - 1)) is None:
            right -= 1
        if first is None or last is None:
            return slice(0)
        # A special token that takes the blanks behind it in begins with what is not learnt.
        characters = encoding.token_to_chars(first)
        if self._guard.is_special[ids[first]] and characters and characters[0] < start:
            first += 1
        # char_to_token names the first of several tokens that make up one character.
        characters = encoding.token_to_chars(last)
        while last + 1 < len(ids) and encoding.token_to_chars(last + 1) == characters:
            last += 1
        return slice(first, last + 1)


def _encode(tokenizer: Tokenizer, texts: list[str]) -> list[Encoding | DecodeError]:
    """Encode texts at once; `encode_batch` lets other threads run meanwhile, `encode` does not."""
    try:
        return list(tokenizer.encode_batch(texts, add_special_tokens=False))
    except Exception as error:  # the library raises nothing more specific
        if len(texts) == 1:
            return [DecodeError(f"the tokenizer cannot encode the text: {error}")]
        return [result for text in texts for result in _encode(tokenizer, [text])]


def _made_again(spec: TextSpec, digest: str) -> TextEncoder:
    encoder = TextEncoder(spec)
    if encoder.digest != digest:
        raise PlanError(
            f"{spec.tokenizer} holds another tokenizer or chat template in this process; give a "
            "folder that does not change, and that all machines share"
        )
    return encoder
