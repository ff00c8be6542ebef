"""Token columns: counts of the tokens of each text, made once per tokenizer and template.

They are beside the index as plain `.npy` files, one folder for each digest of a tokenizer and a
template, that notes the manifest they were counted for. Opening those of a billion samples maps
them and reads nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.array_types import Int32, Int64
from datapipe.index.files.derived import cached_home, open_described, read_about
from datapipe.index.manifest import Manifest

VERSION = 1
"""Version of token columns, and of the parts of a count; raise it when their content changes."""

DTYPES: dict[str, str] = {
    "text_tokens": "<i4",
    "label_tokens": "<i4",
    "sample_image_at": "<i8",
    "image_at": "<i4",
    "sample_label": "<i8",
    "label_start": "<i4",
    "label_stop": "<i4",
}
"""Every column and its dtype, in NumPy's notation. `TokenColumns` says what they hold."""

OFFSETS = {"sample_image_at": "places", "sample_label": "spans"}
"""Columns of offsets, and what a part calls the counts that they are made of."""

FAILURES = "failures.jsonl"
ABOUT = "tokens.json"
SHARDS = "shards.json"

FILES = {f"{name}.npy": dtype for name, dtype in DTYPES.items()}
"""Every file and its dtype."""

_CHUNK = 1 << 22  # samples looked at together, so that columns of any length stay mapped


@dataclass(frozen=True, kw_only=True)
class TokenColumns:
    """Memory-mapped token counts of N samples, with P places of images and S spans of labels.

    Tokens of images are left out: how many an image has depends on its size and on the model. The
    places of sample `i` are `sample_image_at[i]` to `sample_image_at[i + 1]`, its spans of labels
    `sample_label[i]` to `sample_label[i + 1]`.
    """

    folder: Path  # where they are
    digest: str  # of tokenizer and template, hex
    image_wrap: tuple[int, int]  # text tokens before and after an image that belong to it
    failed: int  # samples whose text cannot be used; `failures.jsonl` in `folder` says why
    text_tokens: Int32  # int32 [N]; -1 where the text cannot be used
    label_tokens: Int32  # int32 [N], trained tokens that something stands before, images included
    # `sample_image_at`, `sample_label`: int64 [N + 1]
    sample_image_at: Int64
    image_at: Int32  # int32 [P], number of the sample's text tokens before each of its images
    sample_label: Int64
    # `label_start`, `label_stop`: int32 [S], runs of trained tokens, counted in text tokens
    label_start: Int32
    label_stop: Int32

    def failures(self) -> list[dict[str, str]]:
        """Return `key`, `shard` and `reason` of each sample that failed, `member` if it is one."""
        text = (self.folder / FAILURES).read_text("utf-8")
        return [json.loads(line) for line in text.splitlines()]


def open_tokens(home: Path, manifest: Manifest, digest: str) -> TokenColumns | None:
    """Map the token columns in `home` or the cache folder; None if none are whole and current."""
    name = token_folder(digest)
    for folder in (home / name, cached_home(manifest.fingerprint) / name):
        columns = map_tokens(folder, digest, fingerprint=manifest.fingerprint)
        if columns is not None:
            return columns
    return None


def counted_tokens(home: Path, manifest: Manifest) -> list[TokenColumns]:
    """Return the current token columns of all tokenizers and templates."""
    digests: set[str] = set()
    for root in (home, cached_home(manifest.fingerprint)):
        for path in root.glob(f"{token_folder('')}*/{ABOUT}"):
            digests |= {about["digest"]} if (about := read_about(path, VERSION)) else set()
    opened = (open_tokens(home, manifest, digest) for digest in sorted(digests))
    return [columns for columns in opened if columns is not None]


def token_folder(digest: str) -> str:
    """Return the name of the folder of the columns of a tokenizer and template."""
    return f"tokens-{digest[:16]}"


def map_tokens(folder: Path, digest: str, **facts: Any) -> TokenColumns | None:
    """Map the token columns in a folder; None if they are missing, damaged or of other `facts`."""
    about = read_about(folder / ABOUT, VERSION, digest=digest, **facts)
    arrays = about and open_described(folder, about, FILES, "its tokens are counted")
    if not about or not arrays:
        return None
    before, after = about["image_wrap"]
    return TokenColumns(
        folder=folder,
        digest=digest,
        image_wrap=(before, after),
        failed=about["failed"],
        **arrays,
    )


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Spread of the numbers of tokens over samples."""

    # `total`, `mean`: over all of them
    total: int
    mean: float
    # `p50`, `p90`, `p99`: percentiles, each the least number that so many percent do not exceed
    p50: int
    p90: int
    p99: int
    most: int  # the largest


@dataclass(frozen=True, kw_only=True)
class TokenStats:
    """Token counts of a dataset; images are not among them."""

    failed: int  # samples whose text cannot be used; the rest leaves them out
    # `text`, `labels`: tokens of a sample, and those of them that are predicted
    text: Spread
    labels: Spread


def token_stats(columns: TokenColumns) -> TokenStats:
    """Count tokens in one pass over the columns, a chunk of them at a time."""
    text = labels = np.zeros(1, np.int64)
    for start in range(0, len(columns.text_tokens), _CHUNK):
        tokens = columns.text_tokens[start : start + _CHUNK]
        usable = tokens >= 0
        text = _added(text, tokens[usable])
        labels = _added(labels, columns.label_tokens[start : start + _CHUNK][usable])
    return TokenStats(failed=columns.failed, text=_spread(text), labels=_spread(labels))


def _added(counts: Int64, lengths: Int32) -> Int64:
    """Return how often each length was seen, `lengths` included."""
    more = np.bincount(lengths, minlength=len(counts))
    more[: len(counts)] += counts
    return more


def _spread(counts: Int64) -> Spread:
    samples = int(counts.sum())
    if not samples:
        return Spread(total=0, mean=0.0, p50=0, p90=0, p99=0, most=0)
    total = int(counts @ np.arange(len(counts)))
    before = np.cumsum(counts)
    at = [-(-samples * percent // 100) for percent in (50, 90, 99, 100)]
    p50, p90, p99, most = np.searchsorted(before, at).tolist()
    return Spread(total=total, mean=total / samples, p50=p50, p90=p90, p99=p99, most=most)
