import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.plan.order import Permutation, ShardOrder
from datapipe.plan.rng import mix, mix_array

KEYS = st.integers(0, 2**64 - 1)
COUNTS = st.lists(st.integers(0, 60), max_size=40)


@given(
    size=st.one_of(st.integers(1, 10_000), st.integers(1, 2**62)),
    key=KEYS,
    shares=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20),
)
def test_the_inverse_finds_the_position_of_a_sample(size, key, shares):
    order = Permutation(size, key)
    positions = np.minimum([int(share * size) for share in shares], size - 1)
    assert order.inverse(order(positions)).tolist() == positions.tolist()
    assert order(order.inverse(positions)).tolist() == positions.tolist()
    assert int(order.inverse(int(order(positions[0])))) == positions[0]
    assert order.inverse([]).tolist() == []


ORDERS = [
    lambda: Permutation(1000, key=5),
    lambda: Permutation(100_000, key=5),
    lambda: ShardOrder([300, 0, 200, 500] * 9, key=5, shards_mixed=2),
]


@pytest.mark.parametrize("make", ORDERS)
def test_a_position_has_the_same_sample_whatever_is_asked_with_it_and_none_is_past_the_end(make):
    order = make()
    whole = order(np.arange(order.size))
    assert order([[17, 4], [999, 0]]).tolist() == whole[[[17, 4], [999, 0]]].tolist()
    assert int(order(17)) == whole[17]
    assert order([]).tolist() == []
    for ask in (order, order.inverse) if isinstance(order, Permutation) else (order,):
        for wrong in (-1, order.size):
            with pytest.raises(IndexError, match=f"0 ... {order.size - 1}"):
                ask([0, wrong])


def test_the_order_of_many_samples_never_changes_between_releases():
    # A change here is a change of PLAN_VERSION: saved states would go on in another order.
    far = Permutation(10**12, key=7)(np.array([0, 1, 10**12 - 1]))
    assert far.tolist() == [971593445782, 56893364220, 538044740396]


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50))
def test_the_scalar_and_the_vectorised_generator_agree(values):
    assert mix_array(np.array(values, np.uint64)).tolist() == [mix(value) for value in values]


@given(counts=COUNTS, key=KEYS, mixed=st.integers(1, 50))
def test_a_shard_order_has_every_sample_once_and_reads_from_few_shards_at_a_time(
    counts, key, mixed
):
    order = ShardOrder(counts, key, shards_mixed=mixed)
    every = np.arange(sum(counts))
    samples = order(every)
    assert order.size == len(every)
    assert np.sort(samples).tolist() == every.tolist()
    open_now = set()
    left = dict(enumerate(counts))
    for number in np.repeat(np.arange(len(counts)), counts)[samples].tolist():
        open_now.add(number)
        assert len(open_now) <= mixed
        left[number] -= 1
        if not any(left[other] for other in open_now):
            open_now.clear()


def test_a_shard_order_mixes_the_shards_of_a_window_evenly():
    order = ShardOrder([1000] * 48, key=3)
    shard = order(np.arange(order.size)) // 1000
    for window in np.split(shard, 3):
        numbers, first_half = np.unique(window[:8000], return_counts=True)
        assert len(numbers) == 16
        # Hypergeometric: 500 expected, standard deviation 15.3.
        assert np.abs(first_half - 500).max() < 4 * 15.3


def test_shards_come_in_another_order_with_every_key():
    orders = {tuple((ShardOrder([5] * 32, key)(np.arange(160)) // 5).tolist()) for key in range(50)}
    assert len(orders) == 50
    first = Counter(int(ShardOrder([1] * 4, key, shards_mixed=1)(0)) for key in range(4000))
    assert all(abs(first[shard] - 1000) < 4 * math.sqrt(750) for shard in range(4))


@pytest.mark.parametrize(("counts", "mixed"), [([4, 4], 0), ([4, -1], 2)])
def test_a_shard_order_that_cannot_be_is_refused(counts, mixed):
    with pytest.raises(AssertionError):
        ShardOrder(counts, 0, shards_mixed=mixed)
