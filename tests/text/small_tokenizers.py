"""Small tokenizers of every kind, with the special tokens of the model families."""

import json
import re
from functools import cache

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.trainers import BpeTrainer, UnigramTrainer
from transformers import PreTrainedTokenizerFast

from .families import FAMILIES

NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
SPECIAL = sorted(
    {
        *re.findall(r"<\|\w+\|>|<end_\w+>|<start_\w+>|<IMG_CONTEXT>|<image>", str(FAMILIES)),
        *("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
    }
)

_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def corpus() -> list[str]:
    """English to train on: what modules of the standard library say of themselves."""
    import argparse
    import inspect
    import logging
    import pathlib
    import subprocess

    modules = (argparse, inspect, logging, pathlib, subprocess)
    texts = [inspect.getdoc(module) or "" for module in modules]
    texts += [
        inspect.getdoc(thing) or ""
        for module in modules
        for thing in vars(module).values()
        if callable(thing)
    ]
    return [*texts, "USER: ASSISTANT: user assistant system model", "Ein schönes Bild, é à ü"]


def byte_level() -> Tokenizer:
    """As GPT-2's, Qwen's and Llama 3's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=1200,
        special_tokens=list(NAMED.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return _with_special(tokenizer)


def metaspace(*, legacy: bool = False) -> Tokenizer:
    """As Llama 2's: byte fallback; a blank before the text, or before every piece (legacy)."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    replace = normalizers.Replace(" ", "\u2581")
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replace])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    trainer = BpeTrainer(
        vocab_size=1200, special_tokens=[*NAMED.values(), *_BYTES], show_progress=False
    )
    tokenizer.train_from_iterator([line for text in corpus() for line in text.split()], trainer)
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] not in _BYTES]
    spec["model"]["byte_fallback"] = True
    tokenizer = _with_special(Tokenizer.from_str(json.dumps(spec)))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def unigram() -> Tokenizer:
    """As T5's: a blank before every piece, and special tokens among its own pieces."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = UnigramTrainer(
        vocab_size=800,
        special_tokens=[*NAMED.values(), *SPECIAL],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return _with_special(tokenizer)


def _with_special(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens(
        [
            # Phi-3's tokenizer takes the blanks after its turns' names away.
            AddedToken(token, special=True, normalized=False, rstrip=token == "<|assistant|>")
            for token in SPECIAL
        ]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ("<think>", "</think>")])
    return tokenizer


_MADE = {
    "byte-level": byte_level,
    "metaspace": metaspace,
    "metaspace-legacy": lambda: metaspace(legacy=True),
    "unigram": unigram,
}
TOKENIZERS = tuple(_MADE)


@cache
def small_tokenizer(name: str) -> Tokenizer:
    """One of `TOKENIZERS`, trained once; not to be changed."""
    return _MADE[name]()


@cache
def transformers_tokenizer(
    tokenizer: Tokenizer, template: str | None = None
) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **NAMED)  # type: ignore[no-untyped-call]
