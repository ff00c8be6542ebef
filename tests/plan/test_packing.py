"""Samples put together in packs and in batches."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import PlanError
from datapipe.plan import packing_kernel
from datapipe.plan.batching import cut_batches
from datapipe.plan.options import BLOCK
from datapipe.plan.packing import pack_lengths, pack_units
from datapipe.plan.packing_kernel import MOST_IMAGES, UNLIMITED
from tests.case_files import cases
from tests.plan import packing_oracle


def vlm_lengths(samples, capacity):
    """Tokens and images of samples that fit: captions and documents, images of 144 tokens."""
    random = np.random.default_rng(7)
    median = np.where(random.random(samples) < 0.65, 60, 900)
    text = np.clip(median * np.exp(random.normal(0, 0.8, samples)), 10, 8000)
    images = random.choice(9, samples, p=[0.1, 0.62, 0.1, 0.05, 0.05, 0.02, 0.03, 0.01, 0.02])
    lengths = np.minimum(text.astype(np.int64) + 144 * images, capacity)
    return lengths, images.astype(np.int64)


@st.composite
def arguments(draw):
    """Valid arguments of a packer: lengths, images, capacity, window, max_images, max_samples."""
    capacity = draw(st.sampled_from([1, 7, 64, 100, 1000, 5000]))
    longest = draw(st.integers(1, capacity))
    lengths = draw(st.lists(st.integers(1, longest), min_size=1, max_size=120))
    max_images = draw(st.sampled_from([1, 3, 8, MOST_IMAGES + 5, UNLIMITED]))
    most = draw(st.sampled_from([0, 4])) if max_images == UNLIMITED else max_images
    size = len(lengths)
    images = draw(st.lists(st.integers(0, most), min_size=size, max_size=size))
    max_samples = draw(st.sampled_from([1, 2, 5, UNLIMITED]))
    window = draw(st.integers(1, size))
    return np.array(lengths), np.array(images), capacity, window, max_images, max_samples


@given(case=arguments())
@settings(max_examples=300)
def test_packs_are_those_of_the_oracle_and_none_holds_too_much(case):
    lengths, images, capacity, _, max_images, max_samples = case
    order, offsets = packing_kernel.pack(*case)
    for ours, theirs in zip((order, offsets), packing_oracle.pack(*case), strict=True):
        assert ours.dtype == theirs.dtype == np.int64
        assert ours.tolist() == theirs.tolist()
    assert sorted(order.tolist()) == list(range(len(lengths)))
    assert (offsets[0], offsets[-1]) == (0, len(lengths))
    assert np.diff(offsets).min() >= 1
    assert np.diff(offsets).max() <= max_samples
    assert np.add.reduceat(lengths[order], offsets[:-1]).max() <= capacity
    assert np.add.reduceat(images[order], offsets[:-1]).max() <= max_images


@pytest.mark.parametrize("capacity", [4096, 8192, 16384])
def test_packs_of_short_captions_and_long_documents_are_as_few_as_possible(capacity):
    lengths, _ = vlm_lengths(20_000, capacity)
    _, offsets = pack_units(lengths, capacity)
    packs = len(offsets) - 1
    assert packs == -(-lengths.sum() // capacity)
    assert lengths.sum() / (packs * capacity) >= 0.99


def test_images_are_limited_beside_tokens():
    lengths, images = vlm_lengths(3000, 4096)
    order, offsets = pack_units(lengths, 4096, images=images, max_images=12)
    assert np.add.reduceat(images[order], offsets[:-1]).max() == 12
    needed = max(lengths.sum() / 4096, images.sum() / 12)
    assert len(offsets) - 1 < 1.05 * needed
    free, free_offsets = pack_units(lengths, 4096)
    assert np.add.reduceat(images[free], free_offsets[:-1]).max() > 12


def test_packs_get_similar_numbers_of_images_at_no_cost_of_fill():
    lengths, images = vlm_lengths(20_000, 8192)

    def spread(order, offsets):
        return float(np.add.reduceat(images[order], offsets[:-1]).std())

    regardless, regarding = pack_units(lengths, 8192), pack_units(lengths, 8192, images=images)
    assert spread(*regarding) < 0.85 * spread(*regardless)
    assert len(regarding[1]) == len(regardless[1])


def test_packing_lengths_starts_anew_after_a_block():
    lengths, _ = vlm_lengths(BLOCK + 5000, 8192)
    order, offsets = pack_lengths(lengths, 8192, seed=None)
    first = pack_units(lengths[:BLOCK], 8192)
    second = pack_units(lengths[BLOCK:], 8192)
    assert order.tolist() == [*first[0], *(second[0] + BLOCK)]
    assert offsets.tolist() == [*first[1], *(second[1][1:] + BLOCK)]


@pytest.mark.parametrize("max_images", [None, 4])
def test_the_packs_of_a_seed_never_change_between_releases(max_images):
    # A change here is a change of PLAN_VERSION: saved states would go on in another order.
    lengths = [(37 * number) % 61 + 1 for number in range(40)]
    options = {"window": 16, "images": [number % 3 for number in range(40)]}
    options["max_images"] = max_images
    order, offsets = pack_lengths(lengths, 200, seed=1, **options)
    packs = [order[start:stop].tolist() for start, stop in itertools.pairwise(offsets)]
    recorded = json.loads(Path(__file__).with_name("packs_of_seed_1.json").read_text())
    assert packs == recorded[str(max_images)]
    assert order.tolist() != pack_lengths(lengths, 200, seed=2, **options)[0].tolist()


def test_nothing_makes_no_packs():
    for order, offsets in (pack_lengths([], 10), pack_units(np.zeros(0, np.int64), 10)):
        assert order.dtype == offsets.dtype == np.int64
        assert order.tolist() == []
        assert offsets.tolist() == [0]


@pytest.mark.parametrize("dtype", [np.int16, np.uint32, np.int64])
def test_lengths_of_any_integer_type_give_the_same_packs(dtype):
    lengths = np.array([5, 3, 8, 2, 9, 7], dtype)
    lengths.setflags(write=False)
    assert pack_units(lengths, 10)[0].tolist() == pack_units([5, 3, 8, 2, 9, 7], 10)[0].tolist()


@pytest.mark.parametrize(("lengths", "capacity", "options", "message"), cases("plan/packs"))
@pytest.mark.parametrize("pack", [pack_lengths, pack_units])
def test_impossible_lengths_and_limits_are_refused(pack, lengths, capacity, options, message):
    with pytest.raises(PlanError, match=message):
        pack(json.loads(lengths), int(capacity), **json.loads(options))


# Batches.

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
    else:  # only the last batch of a block is short
        assert (np.diff(offsets)[:-1] == batch_size).all()


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
