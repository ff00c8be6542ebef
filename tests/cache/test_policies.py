"""What stays in a cache when not all fits: by the next use, by the last, or a fixed part."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cache.hits import Lru
from datapipe.cache.layout import EntryLayout
from datapipe.cache.next_use import MOST_RANKS, NEVER, NextUse, expected_hits


def serve(policy, requests, sizes):
    """Requests that a policy serves, each offered where it does not; it keeps to its budget."""
    served, kept = 0, set()
    for now, sample in enumerate(requests):
        later = [at for at in range(now + 1, len(requests)) if requests[at] == sample]
        next_use = later[0] if later else NEVER
        if sample in policy:
            served += 1
            policy.use(sample, next_use)
            if sample not in policy:
                kept.discard(sample)
        else:
            would = policy.would_keep(sample, sizes[sample], next_use)
            taken, going = policy.offer(sample, sizes[sample], next_use)
            assert taken or not going
            assert would or not taken
            kept -= set(going)
            if taken:
                kept.add(sample)
        assert {sample for sample in sizes if sample in policy} == kept
        assert policy.bytes == sum(sizes[sample] for sample in kept) <= policy.budget
    return served


def best(requests, budget):
    """The most that any cache of equal entries can serve, by trying everything."""
    states = {frozenset(): 0}
    for sample in requests:
        after = {}
        for kept, served in states.items():
            now = served + (sample in kept)
            options = [kept] if sample in kept else [kept, kept | {sample}]
            for option in options:
                choices = (
                    [option] if len(option) <= budget else [option - {other} for other in option]
                )
                for choice in choices:
                    after[choice] = max(after.get(choice, 0), now)
        states = after
    return max(states.values())


@given(st.lists(st.integers(0, 4), max_size=14), st.integers(1, 3))
def test_eviction_by_next_use_serves_the_most_that_is_possible(requests, budget):
    sizes = dict.fromkeys(range(5), 1)
    assert serve(NextUse(budget), requests, sizes) == best(requests, budget)


@given(
    st.lists(st.integers(0, 9), max_size=80),
    st.integers(0, 30),
    st.lists(st.integers(0, 12), min_size=10, max_size=10),
    st.sampled_from([NextUse, Lru]),
)
def test_a_policy_keeps_to_its_budget(requests, budget, sizes, kind):
    serve(kind(budget), requests, dict(enumerate(sizes)))


def test_what_is_used_twice_before_the_same_use_leaves_once():
    policy = NextUse(30)
    policy.offer(1, 10, 900)
    policy.offer(2, 10, 800)
    for _ in range(3):
        policy.use(1, 900)
    assert policy.offer(3, 25, 850) == (False, [])  # 2 would have to go too, and is used before
    assert 1 in policy
    assert 2 in policy
    assert policy.offer(4, 20, 100) == (True, [1])
    assert policy.bytes == 30


def test_a_policy_that_is_used_for_days_forgets_what_is_out_of_date():
    policy = NextUse(10)
    for sample in range(10):
        policy.offer(sample, 1, sample)
    for now in range(10, 50_000):
        policy.use(now % 10, now + 10)
    assert len(pickle.dumps(policy)) < 20_000


def sizes_of(samples):
    return 100 + samples % 7 * 50


@pytest.mark.parametrize("count", [1, 100, 50_000])
@pytest.mark.parametrize("part", [0.0, 0.3, 1.0])
def test_a_fixed_part_takes_its_share_and_no_entry_overlaps(count, part):
    every = np.arange(count)
    room = int(-(-sizes_of(every) // 64).sum() * 64)
    layout = EntryLayout(count, sizes_of, int(part * room))
    places = layout.places(every)
    kept = every[places >= 0]
    assert len(kept) == layout.kept
    assert layout.bytes <= part * room
    assert layout.kept == (count if part == 1 else layout.kept)
    assert abs(layout.kept - part * count) <= 1 + 0.05 * count
    order = np.argsort(places[kept])
    assert (places[kept][order] == np.arange(layout.kept)).all()
    assert (np.diff(layout.offsets) >= sizes_of(kept[order])).all()
    assert (layout.offsets % 64 == 0).all()
    if count == 50_000 and part == 0.3:  # spread over all samples
        assert (places >= 0).reshape(100, -1).mean(axis=1).std() < 0.04


def test_what_will_be_served_is_known_before():
    assert expected_hits(NextUse, 0.5, 1) == pytest.approx(0.5, abs=0.02)
    assert expected_hits(NextUse, 0.125, 8) == pytest.approx(0.42, abs=0.03)
    assert expected_hits(NextUse, 0.25, 4) == pytest.approx(0.56, abs=0.03)
    assert expected_hits(Lru, 0.125, 8) == pytest.approx(0.065, abs=0.03)
    assert expected_hits(NextUse, 0.5, MOST_RANKS + 1) is None
