"""Batches of samples of similar length, of a fixed size or within a budget of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from datapipe.errors import PlanError
from datapipe.plan.order import Int64, Permutation


def cut_batches(
    lengths: npt.NDArray[np.integer],
    *,
    batch_size: int | None = None,
    max_tokens: int | None = None,
    buckets: int | Sequence[int],
    key: int | None = None,
    multiple_of: int = 1,
) -> tuple[Int64, Int64]:
    """Cut the samples of one block into batches.

    Samples are put into buckets by length. Batches are cut through one bucket after the other, the
    shortest samples first, so that only the last batch of all is short.

    Args:
        lengths: integers [n], tokens of each sample.
        batch_size: samples of a batch; at most as many under `max_tokens`.
        max_tokens: of a batch, padding included: its samples times the longest of them.
        buckets: how many, of equally many samples; or their boundaries in tokens, ascending: a
            sample of a boundary's length belongs to the bucket above.
        key: shuffles the samples inside the buckets; None keeps them in the order given.
        multiple_of: a batch is padded to a multiple of this many tokens.

    Returns:
        Order int64 [n] and offsets int64 [batches + 1]: batch b has the samples
        `order[offsets[b]:offsets[b + 1]]`.

    Raises:
        PlanError: a sample is longer than `max_tokens`, or an argument is impossible.
    """
    if batch_size is None and max_tokens is None:
        raise PlanError("batches need a batch_size, max_tokens, or both")
    for name, value in (
        ("batch_size", batch_size),
        ("max_tokens", max_tokens),
        ("multiple_of", multiple_of),
    ):
        if value is not None and value < 1:
            raise PlanError(f"{name} {value}: at least 1 is needed")
    padded = -(-lengths.astype(np.int64) // multiple_of) * multiple_of
    if max_tokens is not None:
        _check_longest(lengths, padded, max_tokens, multiple_of)
    given = np.arange(len(lengths), dtype=np.int64)
    if key is not None:
        given = Permutation(len(lengths), key)(given)
    order = given[np.argsort(_bucket(lengths[given], buckets), kind="stable")]
    if max_tokens is None:
        assert batch_size is not None  # one of the two is given
        offsets = np.append(np.arange(0, len(order), batch_size), len(order))
        return order, offsets if len(order) else offsets[:1]
    return order, _cut_by_tokens(padded[order], max_tokens, batch_size or len(order))


def padded_tokens(
    order: Int64, offsets: Int64, lengths: npt.NDArray[np.integer], *, multiple_of: int = 1
) -> Int64:
    """Tokens of each batch with its padding: int64 [batches].

    Args:
        order, offsets: as from `cut_batches`.
        lengths: integers [n], tokens of each sample.
        multiple_of: a batch is padded to a multiple of this many tokens.
    """
    if len(offsets) == 1:
        return np.zeros(0, np.int64)
    longest: Int64 = np.maximum.reduceat(lengths[order].astype(np.int64), offsets[:-1])
    padded: Int64 = -(-longest // multiple_of) * multiple_of
    return np.diff(offsets) * padded


def _bucket(lengths: npt.NDArray[np.integer], buckets: int | Sequence[int]) -> Int64:
    """The bucket of each sample, the shortest samples in bucket 0."""
    if isinstance(buckets, (int, np.integer)):
        if buckets < 1:
            raise PlanError(f"buckets {buckets}: at least 1 is needed")
        ranks = np.empty(len(lengths), np.int64)
        ranks[np.argsort(lengths, kind="stable")] = np.arange(len(lengths))
        return ranks * int(buckets) // max(len(lengths), 1)
    boundaries = np.asarray(buckets)
    if boundaries.ndim != 1 or (np.diff(boundaries) <= 0).any():
        raise PlanError(f"buckets {buckets}: give their boundaries in ascending order")
    numbers: Int64 = np.searchsorted(boundaries, lengths, side="right").astype(np.int64)
    return numbers


def _cut_by_tokens(padded: Int64, max_tokens: int, max_samples: int) -> Int64:
    offsets = [0]
    longest = count = 0
    for place, length in enumerate(padded.tolist()):
        longest = max(longest, length)
        count += 1
        if count > max_samples or count * longest > max_tokens:
            offsets.append(place)
            longest, count = length, 1
    if len(padded):
        offsets.append(len(padded))
    return np.array(offsets, np.int64)


def _check_longest(
    lengths: npt.NDArray[np.integer], padded: Int64, max_tokens: int, multiple_of: int
) -> None:
    overlong = np.flatnonzero(padded > max_tokens)
    if overlong.size:
        first = int(overlong[0])
        rounded = f", {padded[first]} as a multiple of {multiple_of}," * (multiple_of > 1)
        raise PlanError(
            f"sample {first} has {lengths[first]} tokens{rounded} and a batch holds "
            f"max_tokens={max_tokens}; raise it to at least {padded.max()}, or leave out the "
            f"{overlong.size} samples that are longer"
        )
