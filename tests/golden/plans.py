"""The golden plans: options of `datapipe plan`, by name."""

from typing import Any

from .data import TOKENIZER

_CHATML = ("--tokenizer", TOKENIZER, "--template", "chatml")
PLANS: dict[str, tuple[Any, ...]] = {
    "samples": ("--batch-size", 4),
    "samples, last dropped": ("--batch-size", 3, "--world-size", 4, "--drop-last"),
    "samples, filtered": ("--batch-size", 4, "--where", "width > 40"),
    "padded": (*_CHATML, "--batch-size", 4, "--image-tokens", 6, "--max-length", 120),
    "padded to a length": (
        *(*_CHATML, "--batch-size", 4, "--image-tokens", 6, "--pad-to", 512),
        *("--sample-images", 3),
    ),
    "padded to a multiple": (
        *(*_CHATML, "--batch-size", 4, "--image-tokens", 6, "--pad-to-multiple-of", 64),
    ),
    "buckets": (*_CHATML, "--batch-size", 2, "--buckets", "60,120", "--world-size", 2),
    "token budget": (*_CHATML, "--max-tokens", 700, "--image-tokens", 6, "--buckets", 2),
    "prompts": (*_CHATML, "--prompts", "--batch-size", 4, "--image-tokens", 6, "--buckets", 2),
    "packs": (*_CHATML, "--pack", 512, "--image-tokens", 6, "--world-size", 3, "--epoch", 1),
    "packs, cut": (
        *(*_CHATML, "--pack", 200, "--image-tokens", 30, "--overlong", "truncate"),
        *("--world-size", 2, "--seed", 5),
    ),
    "packs of patches": (
        *(*_CHATML, "--image", "qwen2-vl,max_pixels=12544", "--pack", 512, "--max-patches", 200),
        *("--world-size", 2, "--pack-window", 8, "--pack-multiple-of", 4),
    ),
    "step of packs": (*_CHATML, "--pack", 512, "--image-tokens", 6, "--world-size", 2, "--step", 2),
    "step of mixed shards": ("--batch-size", 4, "--shards-mixed", 2, "--epoch", 2, "--step", 3),
}
