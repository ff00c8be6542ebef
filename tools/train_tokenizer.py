"""Train a small ChatML tokenizer on the texts of a packed dataset.

    python tools/train_tokenizer.py SHARDS tokenizer.json

For demonstrations on a machine that reaches no model hub; a model brings its own tokenizer.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import datapipe

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>")


def train(shards: Path, vocabulary: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer that spells every text, with ChatML's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(shards), trainer)
    return tokenizer


def texts(shards: Path) -> Iterator[str]:
    for batch in datapipe.make_loader(shards, batch_size=256, image=None, shuffle=False):
        yield from batch["text"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("shards", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--vocabulary", type=int, default=4096)
    options = parser.parse_args()
    tokenizer = train(options.shards, options.vocabulary)
    tokenizer.save(str(options.tokenizer))
    print(f"{options.tokenizer}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
