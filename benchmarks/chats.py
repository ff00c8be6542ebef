"""Captions mixed with conversations, over photographs: what vision-language models train on."""

import json
from pathlib import Path
from pydoc_data.topics import topics
from random import Random

import numpy as np

import datapipe
from benchmarks.common import made_once
from benchmarks.data import HOME, photographs
from datapipe.pack.pack_dataset import pack_dataset
from tools.train_tokenizer import train as train_tokenizer

VOCABULARY = 8192

# Shares of samples, least and most words of all answers, and turns: captions as in COCO and
# LAION, conversations as in LLaVA-Instruct, long answers as in ShareGPT4V and its like.
KINDS = ((0.55, (8, 20), (1, 1)), (0.35, (80, 300), (2, 5)), (0.10, (300, 700), (3, 8)))


def chats(samples: int) -> tuple[Path, Path]:
    """Shards of so many samples, and a tokenizer trained on their texts; made where missing."""
    photos = photographs(samples)
    raw, out = HOME / f"chats-{samples}", HOME / f"chats-{samples}-packed"
    tokenizer = HOME / f"chats-{samples}-tokenizer.json"

    def write(folder: Path) -> None:
        paths = [path.relative_to(photos.raw).as_posix() for path in photos.paths()]
        # Words of English, in order: those of Python's own documentation.
        rng, words = Random(0), " ".join(topics[name] for name in sorted(topics)).split()
        records = [record(rng, words, number, path) for number, path in enumerate(paths)]
        (folder / "data.json").write_text(json.dumps(records))

    pack_dataset(made_once(raw, write) / "data.json", out, image_root=photos.raw)
    if not tokenizer.exists():
        train_tokenizer(out, VOCABULARY).save(str(tokenizer))
    return out, tokenizer


def record(rng: Random, words: list[str], number: int, image: str) -> dict[str, object]:
    _, (least, most), (fewest, turns) = rng.choices(KINDS, [share for share, *_ in KINDS])[0]
    count = rng.randint(fewest, turns)
    total = round(least * (most / least) ** rng.random())
    conversation = []
    for turn in range(count):
        start = rng.randrange(len(words) - most)
        question = " ".join(words[start : start + rng.randint(5, 12)])
        answer = " ".join(words[start : start + max(3, total // count)])
        conversation += [
            {"from": "human", "value": "<image>\n" * (turn == 0) + question},
            {"from": "gpt", "value": answer},
        ]
    return {"id": str(number), "image": image, "conversations": conversation}


def describe(shards: Path, tokenizer: Path, image_tokens: int) -> str:
    text = datapipe.TextSpec(tokenizer=tokenizer, template="chatml", image_tokens=image_tokens)
    lengths = [
        int(length)
        for batch in datapipe.make_loader(shards, batch_size=64, text=text, image=None)
        for length in batch["attention_mask"].sum(1)
    ]
    low, middle, high = np.percentile(lengths, (10, 50, 90))
    return (
        f"{len(lengths):,} samples of {np.mean(lengths):.0f} tokens (10th, 50th, 90th percentile "
        f"{low:.0f}, {middle:.0f}, {high:.0f}; at most {max(lengths):,})"
    )
