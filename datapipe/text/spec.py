"""Options of tokenizer, template and labels."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from datapipe.array_types import Int64
from datapipe.declared import Count, Refused, Say, check_fields, take_if, take_options, take_path
from datapipe.errors import PlanError
from datapipe.short_repr import short_repr
from datapipe.text.markup import ImageMarkup, VideoMarkup
from datapipe.text.templates import BUILT_IN

Overlong = Literal["truncate", "drop", "raise"]

_WITHOUT_IMAGES = 576  # those of LLaVA-1.5, whose images have 336 x 336 pixels in patches of 14


def take_object(value: Any) -> Any:
    """Return an object of any class, or the path that a string is; `Refused` for plain values."""
    if value is None or isinstance(value, bool | int | float | bytes):
        raise Refused
    return take_path(value) if isinstance(value, str | os.PathLike) else value


_filled = take_if(lambda text: str(text).strip())
AnyTokenizer = Annotated[
    Any,
    take_object,
    Say(
        "a tokenizer.json, a folder that holds one, a tokenizers.Tokenizer or a fast tokenizer of "
        "transformers"
    ),
]
Template = Annotated[
    str | Path,
    _filled,
    Say(
        f"{', '.join(map(repr, BUILT_IN))}, a file, a Jinja template, or None for the tokenizer's "
        "own"
    ),
]
ImageTokens = Annotated[
    Count | Literal["per-tile", "native"] | Callable[[Int64, Int64], Any],
    Say("a number from 1, 'per-tile', 'native', or a function of widths and heights"),
]
Token = Annotated[
    str, _filled, Say("the token as a string, or None to take a known one from the vocabulary")
]


@dataclass(frozen=True, kw_only=True, repr=False)
class TextSpec:
    """Options for turning the text of a sample into tokens and labels.

    Attributes:
        tokenizer: a `tokenizer.json`, or the folder of a tokenizer. `tokenizer_config.json`,
            `special_tokens_map.json` and `chat_template.json` (or `.jinja`) are read beside it
            where there are such. Or a `tokenizers.Tokenizer`, or a fast tokenizer of transformers,
            whose chat template and special tokens come with it.
        template: "llava", "chatml", "caption", or a file with a Jinja chat template. "llava" is the
            Vicuna conversation of LLaVA-1.5; "caption" is images, then the text, all of it
            trained on, then the end-of-sequence token. The file holds the template alone, or is a
            `tokenizer_config.json` or `chat_template.json`; the Jinja source itself does too. None
            is the tokenizer's own chat template.
        image_tokens: tokens of an image in the model: a number, "per-tile" or "native". "per-tile"
            is as in InternVL, "native" as in Qwen2-VL. Or a function of widths and heights, int64
            [n] each, that returns int64 [n]. None is what follows from the `ImageSpec`
            (`ImageSpec.image_tokens`), and 576 where images are left out.
        image_token: the token that is repeated for an image, as it stands in the vocabulary. None
            takes a known one, such as `<image>` or `<|image_pad|>`.
        image_markup: text that the model expects between the tokens of an image, such as at the end
            of each row. It belongs to the image: truncation cuts neither, and labels are -100.
        video_markup: a `VideoMarkup`, text that the model expects for a video. Without it, or
            without `ImageSpec(video=...)`, each frame is an image.
        max_length: tokens of a sample at most, images included.
        overlong: "truncate", "drop" or "raise" where samples are longer. They are cut behind whole
            images, left out, or refused.
        system: a system message for conversations that have none.
        add_bos: whether a text begins with what its tokenizer puts before one, such as `<s>`, where
            the template does not write it. Processors of transformers do that.
        attention_chunk: tokens of a chunk, for models such as Llama 4 in whose attention a token
            sees those of its own chunk of a row. Longer rows of packs are refused: a chunk would
            end within a sample.
        pairs: samples are preference pairs, of a prompt with a chosen and a rejected answer.
            A batch of B pairs has 2B rows: all with the chosen answer, then all with the rejected
            one, as in TRL. `max_length` is of each row.
        prompts: samples end before their last answer, with what the template writes before one.
            Batches have no labels and are padded on the left, for a model that answers them.
        token_types: whether batches have `token_type_ids`, int64 of the shape of `input_ids`: 1 at
            the tokens of images and 0 elsewhere, as Gemma 3 takes them. "mm_token_type_ids" names
            them as Gemma 4 does.
        seq_idx: whether packs have `seq_idx`, int32 of the shape of `input_ids`: the number of each
            token's sample in the pack, by which convolutions of LFM2 and Qwen3.5 keep samples
            apart.

    Raises:
        PlanError: a value is not one of these, or they contradict each other.

    Examples:
        >>> text = datapipe.TextSpec(tokenizer="tokenizer.json", template="chatml", image_tokens=16)
        >>> loader = datapipe.make_loader("shards/", batch_size=2, text=text)
        >>> next(iter(loader))["input_ids"].dtype
        torch.int64
    """

    tokenizer: AnyTokenizer
    template: Template | None = None
    image_tokens: ImageTokens | None = None
    image_token: Token | None = None
    image_markup: Annotated[Any, take_options(ImageMarkup)] | None = None
    video_markup: Annotated[Any, take_options(VideoMarkup)] | None = None
    max_length: Count | None = None
    overlong: Overlong = "raise"
    system: str | None = None
    add_bos: bool = False
    token_types: bool | Literal["mm_token_type_ids"] = False
    seq_idx: bool = False
    attention_chunk: Count | None = None
    pairs: bool = False
    prompts: bool = False

    def __post_init__(self) -> None:
        check_fields(self, PlanError)
        if self.system is not None and self.template == "caption":
            raise PlanError(
                "system= is a message of a conversation, and template='caption' writes none; leave "
                "one of them out"
            )
        if self.pairs and self.prompts:
            raise PlanError(
                "pairs=True trains on two answers to a prompt, prompts=True leaves answers out; "
                "give one of them"
            )
        for name in ("pairs", "prompts"):
            if getattr(self, name) and self.template == "caption":
                raise PlanError(
                    f"{name}=True is about conversations, and template='caption' writes none; give "
                    "template=None for the tokenizer's own, 'chatml' or 'llava'"
                )
        if self.prompts and self.overlong == "truncate":
            raise PlanError(
                "overlong='truncate' would cut off the end of a prompt, where its answer begins; "
                "give overlong='drop' or 'raise' with prompts=True"
            )

    __repr__ = short_repr


class SizedImages(Protocol):
    """Image options that say how many tokens an image has."""

    @property
    def image_tokens(self) -> int | Literal["per-tile", "native"]:
        """Tokens of an image in the model; `PlanError` if the options do not say."""

    @property
    def video(self) -> object:
        """Options of the frames of videos; None if each is an image."""


def with_image_tokens(text: TextSpec, image: SizedImages | None) -> TextSpec:
    """Return text options in which `image_tokens` is given; `PlanError` if neither spec says it.

    `image` is that of the same samples; None if images are left out. Unless it has options of
    videos, there is no `video_markup`: each frame is an image.
    """
    if image is None or image.video is None:
        text = replace(text, video_markup=None)
    if text.image_tokens is not None:
        return text
    tokens = _WITHOUT_IMAGES if image is None else image.image_tokens
    return replace(text, image_tokens=tokens)
