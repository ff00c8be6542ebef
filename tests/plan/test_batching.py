import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import PlanError
from datapipe.plan.batching import cut_batches

LENGTHS = np.random.default_rng(3).integers(1, 500, 1000)


def padded_tokens(order, offsets, lengths=LENGTHS):
    longest = [max(batch) for batch in np.split(lengths[order], offsets[1:-1]) if len(batch)]
    return np.diff(offsets) * np.array(longest, np.int64)


@given(
    lengths=st.lists(st.integers(1, 200), max_size=150),
    batch_size=st.none() | st.integers(1, 40),
    max_tokens=st.none() | st.integers(256, 4000),
    buckets=st.integers(1, 9) | st.sets(st.integers(1, 200), min_size=1).map(sorted),
    key=st.none() | st.integers(0, 2**64 - 1),
)
@settings(max_examples=300)
def test_every_sample_is_in_one_batch_and_no_batch_is_too_large(
    lengths, batch_size, max_tokens, buckets, key
):
    if batch_size is None and max_tokens is None:
        batch_size = 7
    tokens = np.array(lengths, np.int64)
    order, offsets = cut_batches(
        tokens, batch_size=batch_size, max_tokens=max_tokens, buckets=buckets, key=key
    )
    assert order.dtype == offsets.dtype == np.int64
    assert sorted(order.tolist()) == list(range(len(lengths)))
    assert offsets[0] == 0
    assert offsets[-1] == len(lengths)
    assert (np.diff(offsets) >= 1).all()
    padded = padded_tokens(order, offsets, tokens)
    assert (padded >= np.diff(np.append(0, np.cumsum(tokens[order]))[offsets])).all()
    if batch_size is not None:
        assert (np.diff(offsets) <= batch_size).all()
    if max_tokens is not None:
        assert (padded <= max_tokens).all()


def test_only_the_last_batch_of_a_block_is_short():
    _, offsets = cut_batches(LENGTHS, batch_size=48, buckets=7, key=1)
    assert (np.diff(offsets)[:-1] == 48).all()
    assert offsets[-1] - offsets[-2] == 1000 % 48


def test_buckets_keep_samples_of_similar_length_together():
    def padding(buckets):
        order, offsets = cut_batches(LENGTHS, batch_size=50, buckets=buckets, key=1)
        return 1 - LENGTHS.sum() / padded_tokens(order, offsets).sum()

    assert padding(1) > 0.4
    assert padding(10) < 0.15


def test_boundaries_part_short_samples_from_long_ones():
    order, offsets = cut_batches(np.array([9, 3, 5, 1, 7]), batch_size=2, buckets=[5, 8], key=None)
    assert order.tolist() == [1, 3, 2, 4, 0]
    assert offsets.tolist() == [0, 2, 4, 5]


def test_the_order_inside_a_bucket_is_the_one_given_or_a_random_one():
    kept, _ = cut_batches(LENGTHS, batch_size=10, buckets=1, key=None)
    assert kept.tolist() == list(range(1000))
    shuffled, _ = cut_batches(LENGTHS, batch_size=10, buckets=1, key=5)
    assert abs(np.corrcoef(kept, shuffled)[0, 1]) < 0.1
    again, _ = cut_batches(LENGTHS, batch_size=10, buckets=1, key=5)
    assert shuffled.tolist() == again.tolist()


def test_a_token_budget_makes_batches_as_large_as_it_allows():
    order, offsets = cut_batches(LENGTHS, max_tokens=4000, buckets=20, key=1)
    padded = padded_tokens(order, offsets)
    assert padded.mean() > 0.85 * 4000
    # The first sample of the next batch would have been one too many.
    samples = np.diff(offsets)[:-1]
    longest = np.maximum(padded[:-1] // samples, LENGTHS[order[offsets[1:-1]]])
    grown = (samples + 1) * longest
    assert (grown > 4000).all()


def test_a_sample_over_the_token_budget_is_refused():
    message = "sample 1 has 9 tokens and .* max_tokens=8; raise it to at least 9"
    with pytest.raises(PlanError, match=message):
        cut_batches(np.array([3, 9]), max_tokens=8, buckets=1)
