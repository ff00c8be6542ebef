"""Batches of samples of similar length, of a fixed size or within a budget of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datapipe.array_types import Int64, Integers
from datapipe.errors import PlanError
from datapipe.plan.order import Permutation


def cut_batches(
    lengths: Integers,
    *,
    batch_size: int | None = None,
    max_tokens: int | None = None,
    buckets: int | Sequence[int],
    key: int | None = None,
) -> tuple[Int64, Int64]:
    """Cut the samples of one block into batches.

    Samples are put into buckets by length. Batches are cut through one bucket after the other, the
    shortest samples first, so that only the last batch of all is short. `buckets` is the number of
    buckets with equally many samples, or their boundaries in tokens, ascending: a sample of a
    boundary's length belongs to the bucket above. One of `batch_size` and `max_tokens`, padding
    included, is given. `key` shuffles the samples inside the buckets.

    The result is an order, int64 [n], and offsets, int64 [batches + 1]: batch b has the samples
    `order[offsets[b]:offsets[b + 1]]`. `PlanError` if a sample is longer than `max_tokens`.
    """
    if max_tokens is not None and len(lengths) and lengths.max() > max_tokens:
        overlong = np.flatnonzero(lengths > max_tokens)
        raise PlanError(
            f"sample {overlong[0]} has {lengths[overlong[0]]} tokens and a batch holds "
            f"max_tokens={max_tokens}; raise it to at least {lengths.max()}, or leave out the "
            f"{overlong.size} samples that are longer"
        )
    samples = np.arange(len(lengths), dtype=np.int64)
    if key is not None:
        samples = Permutation(len(lengths), key)(samples)
    order = samples[np.argsort(_bucket(lengths[samples], buckets), kind="stable")]
    if max_tokens is None:
        assert batch_size is not None
        offsets = np.append(np.arange(0, len(order), batch_size), len(order))
        return order, offsets if len(order) else offsets[:1]
    return order, _cut_by_tokens(lengths[order], max_tokens, batch_size or len(order))


def _bucket(lengths: Integers, buckets: int | Sequence[int]) -> Int64:
    """Return the bucket of each sample, with the shortest samples in bucket 0."""
    if isinstance(buckets, int):
        ranks = np.empty(len(lengths), np.int64)
        ranks[np.argsort(lengths, kind="stable")] = np.arange(len(lengths))
        return ranks * buckets // max(len(lengths), 1)
    return np.searchsorted(np.asarray(buckets), lengths, side="right").astype(np.int64)


def _cut_by_tokens(lengths: Integers, max_tokens: int, max_samples: int) -> Int64:
    offsets = [0]
    longest = count = 0
    for position, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        count += 1
        if count > max_samples or count * longest > max_tokens:
            offsets.append(position)
            longest, count = length, 1
    if len(lengths):
        offsets.append(len(lengths))
    return np.array(offsets, np.int64)
