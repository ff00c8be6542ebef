"""Token counts of a dataset in a few figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from datapipe.array_types import Int32, Int64
from datapipe.index.tokens.columns import TokenColumns

_CHUNK = 1 << 22  # samples looked at together, so that columns of any length stay mapped


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
