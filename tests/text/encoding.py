"""Encoders of small tokenizers, and what they make of a sample."""

from functools import cache

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from datapipe.errors import DecodeError
from datapipe.text.encode import EncodedText, SampleText, TextEncoder
from datapipe.text.spec import TextSpec
from datapipe.text.truncate import IGNORE, expand

from .small_tokenizers import small_tokenizer, transformers_tokenizer

QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


@cache
def make(template="chatml", name="byte-level", **options):
    options.setdefault("image_token", "<image>")
    tokenizer = transformers_tokenizer(small_tokenizer(name))
    return TextEncoder(TextSpec(tokenizer=tokenizer, template=template, **options))


def of_words(*words):
    """An encoder of captions by a tokenizer that knows these words alone."""
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["</s>"])
    return TextEncoder(TextSpec(tokenizer=tokenizer, template="caption"))


def chat(*turns, images=0):
    return SampleText(
        None, {"messages": [{"role": role, "content": text} for role, text in turns]}, images
    )


def encoded(encoder, sample):
    (result,) = encoder.encode([sample])
    assert isinstance(result, EncodedText), result
    return result


def expanded(encoder, sample):
    """A sample with every image as one token."""
    text = encoded(encoder, sample)
    return expand(text, [np.full(1, encoder.image_id or 0)] * len(text.image_at))


def written(encoder, sample, learnt=False):
    """What a sample says once each image is one token; or what of it is learnt."""
    whole = expanded(encoder, sample)
    ids = whole.input_ids[whole.labels != IGNORE] if learnt else whole.input_ids
    tokenizer = encoder.spec.tokenizer.backend_tokenizer
    return str(tokenizer.decode(ids.tolist(), skip_special_tokens=False))


def reason(encoder, sample):
    (result,) = encoder.encode([sample])
    assert isinstance(result, DecodeError), result
    return result.reason
