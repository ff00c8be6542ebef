"""Places of images in a text, in the spelling of each family of models.

Datasets are written for a model, and mark the place of an image as that model's processor expects
it. Here every known spelling becomes `<image>`; so no such word is ever trained on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from datapipe.errors import DecodeError

IMAGE_PLACE = "<image>"
"""Marks the place of an image in a text, as LLaVA and LLaMA-Factory write it."""

# Longer spellings stand before those that they contain. A run of one token stands for one image
# where it is wrapped, as a processor that has expanded a place leaves it.
_PLACES = re.compile(
    r"\(?<image>\./</image>\)?"  # MiniCPM-V
    r"|<img>(?:<IMG_CONTEXT>)+</img>|(?:<IMG_CONTEXT>)+"  # InternVL
    r"|<[Ii]mg><ImageHere></[Ii]mg>|<ImageHere>"  # MiniGPT-4, InternLM-XComposer
    r"|<img>[^<>]{1,4096}</img>"  # Qwen-VL, with the image's path inside
    r"|<__dj__image>"  # Data-Juicer
    r"|<image_placeholder>"  # DeepSeek-VL, Janus
    r"|<image_soft_token>|<start_of_image>"  # Gemma 3
    r"|<(?:image|img)[ _-]?(?P<number>\d{1,3})>|<\|image_(?P<phi>\d{1,3})\|>"  # MMMU, Phi-3
    r"|<Image>|<IMAGE>|<img>(?!\s*[^<>\s]*</)"
    r"|\[IMG\](?![^\[]*\[/IMG\])"  # Pixtral, and not the code of web forums
)
# Special tokens of chat formats: places in the texts of samples with images, else words about
# them, which the encoder keeps from meaning anything.
_TOKENS = re.compile(
    r"<\|vision_start\|>(?:<\|image_pad\|>)+<\|vision_end\|>|(?:<\|image_pad\|>)+"  # Qwen2-VL
    r"|<\|begin_of_image\|>(?:<\|image\|>)+<\|end_of_image\|>|<\|image\|>"  # GLM-4V, Llama 3.2
    r"|<\|image_token\|>|<\|IMAGE_PLACEHOLDER\|>|<\|media_pad\|>"
)
_CONTEXT = re.compile(r"<img><IMG_CONTEXT></img>|<IMG_CONTEXT>")
_PATH = re.compile(r"<img>([^<>]{1,4096})</img>")
_NO_TEXT = re.compile(r"\s*<\|__dj__eoc\|>")  # what Data-Juicer ends a chunk of text with


def mark_places(text: str) -> str:
    """Return `text` with `<image>` at each place of an image, however it is spelt.

    Special tokens of chat formats, such as `<|image_pad|>`, are left to `mark_all`.

    Examples:
        >>> mark_places("<ImageHere>What is this?")
        '<image>What is this?'
    """
    if "<" not in text and "[IMG]" not in text:
        return text
    text = _PLACES.sub(IMAGE_PLACE, text)
    return _NO_TEXT.sub("", text) if "<|__dj__" in text else text


def mark_all(texts: Sequence[str], images: int | None) -> list[str]:
    """Return the texts of a sample with `<image>` at each place of its images.

    Special tokens are places where the sample has images and nothing else marks theirs; they are
    words elsewhere. `images` is None if their number is not known. Raises `DecodeError` if numbered
    places are not in order.

    Examples:
        >>> mark_all(["<|vision_start|><|image_pad|><|vision_end|>What?", "A cat."], images=1)
        ['<image>What?', 'A cat.']
    """
    numbers = numbers_in(texts)
    start = 1 if numbers and numbers[0] else 0
    if numbers != list(range(start, start + len(numbers))):
        raise DecodeError(
            f"the text names its images as {', '.join(map(str, numbers))}; each must appear once, "
            "in the order of the images"
        )
    marked = [mark_places(text) for text in texts]
    if images and not any(IMAGE_PLACE in text for text in marked):
        return [_TOKENS.sub(IMAGE_PLACE, text) if "<|" in text else text for text in marked]
    return marked


def mark_contexts(text: str) -> tuple[str, int]:
    """Return a text with `<image>` for each `<IMG_CONTEXT>`, and their number.

    XTuner has one for each image; other texts may have a run of them, as `mark_places` takes it.
    """
    return _CONTEXT.subn(IMAGE_PLACE, text)


def paths_in(text: str) -> list[str]:
    """Return the paths of images that a text names itself, as `<img>PATH</img>` of Qwen-VL."""
    return _PATH.findall(text) if "<img>" in text else []


def numbers_in(texts: Iterable[str]) -> list[int]:
    """Return the numbers of numbered places, such as `<image_2>`, in the order they stand in."""
    return [
        int(found["number"] or found["phi"])
        for text in texts
        if "<" in text
        for found in _PLACES.finditer(text)
        if found["number"] or found["phi"]
    ]
