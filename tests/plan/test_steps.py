"""Steps, ranks, and what is left out: for every kind of unit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.errors import StateMismatch
from datapipe.plan.steps import Exclusion, Position, steps_in, walk

KINDS = [
    {},
    {"shuffle": False},
    {"pack": 64},
    {"pack": 64, "max_images": 3, "group": 4},
    {"pack": 72, "pack_multiple_of": 8, "max_samples": 2, "group": 6},
    {"buckets": 4, "batch_size": 5, "group": 3},
    {"buckets": (10, 30), "batch_size": 3},
    {"max_tokens": 200, "buckets": 3, "group": 2},
]

kinds = st.sampled_from(KINDS)
small_blocks = st.sampled_from([7, 16, 50, 1000])


def order_of(steps):
    """Samples of some steps in global order."""
    return [int(sample) for step in steps for sample in step.units.samples]


def all_steps(blocks, share, start=None, **more):
    return list(walk(blocks, start or Position(blocks.epoch), share=share, **more))


@given(
    kind=kinds,
    block=small_blocks,
    samples=st.integers(1, 150),
    first=st.integers(1, 9),
    second=st.integers(1, 9),
    stop=st.floats(0, 1),
)
def test_steps_hold_every_sample_once_and_other_ranks_go_on_where_some_stopped(
    blocks, kind, block, samples, first, second, stop
):
    whole = all_steps(blocks(samples, block=block, **kind), first)
    assert sorted(order_of(whole)) == list(range(samples))
    assert [len(step.units) for step in whole[:-1]] == [first] * (len(whole) - 1)
    assert [step.last for step in whole] == [False] * (len(whole) - 1) + [True]
    begun = whole[: int(stop * len(whole))]
    position = begun[-1].stop if begun else Position(0)
    rest = all_steps(blocks(samples, block=block, **kind), second, position)
    assert order_of(begun) + order_of(rest) == order_of(whole)


@given(
    kind=kinds,
    samples=st.integers(1, 100),
    units_per_rank=st.integers(1, 4),
    ranks=st.integers(1, 6),
)
def test_ranks_together_take_what_the_step_holds_once(blocks, kind, samples, units_per_rank, ranks):
    for step in all_steps(blocks(samples, block=40, **kind), units_per_rank * ranks):
        shares = [
            step.share(units_per_rank=units_per_rank, rank=rank, world_size=ranks)
            for rank in range(ranks)
        ]
        assert all(len(share.units) == units_per_rank for share in shares)
        valid = np.concatenate([share.units.samples[share.valid] for share in shares])
        assert sorted(valid.tolist()) == sorted(step.units.samples.tolist())


def test_ranks_take_units_in_turn_and_the_last_step_repeats_its_own(blocks):
    def shares(step, ranks):
        found = [step.share(units_per_rank=2, rank=rank, world_size=ranks) for rank in range(ranks)]
        return [(share.units.samples.tolist(), share.valid.tolist()) for share in found]

    steps = all_steps(blocks(10, shuffle=False), 4)
    assert shares(steps[0], 2) == [([0, 2], [True, True]), ([1, 3], [True, True])]
    assert shares(steps[-1], 2) == [([8, 8], [True, False]), ([9, 9], [True, False])]
    # With fewer units than ranks every rank gets a batch.
    last = all_steps(blocks(9, shuffle=False), 8)[-1]
    assert shares(last, 4) == [([8, 8], [True, False])] + 3 * [([8, 8], [False, False])]


ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), max_size=5)


@given(
    kind=kinds, samples=st.integers(1, 60), share=st.integers(1, 9), out=ranges, drop=st.booleans()
)
def test_steps_are_counted_and_excluded_ones_do_not_come_while_others_stay_as_they_are(
    blocks, kind, samples, share, out, drop
):
    made = blocks(samples, block=25, **kind)
    exclusion = Exclusion(units={0: [(start, start + more) for start, more in out]})
    whole = all_steps(made, share, drop_last=drop)
    units = sum(len(step.units) for step in all_steps(made, 1))
    assert steps_in(units, share=share, drop_last=drop) == len(whole)
    assert all(len(step.units) == share for step in whole) or not drop
    gone = {unit for start, more in out for unit in range(start, start + more)}
    rest = [step for step in whole if not gone >= {*range(step.start.consumed, step.stop.consumed)}]
    left = all_steps(made, share, exclusion=exclusion, drop_last=drop)
    assert [step.start for step in left] == [step.start for step in rest]
    assert [step.units.samples.tolist() for step in left] == [
        step.units.samples.tolist() for step in rest
    ]
    assert [step.last for step in left] == [False] * (len(left) - 1) + [True] * bool(left)
    assert steps_in(units, share=share, drop_last=drop, exclusion=exclusion) == len(left)
    for step in left:
        numbers = np.arange(step.start.consumed, step.stop.consumed)
        of_units = np.repeat(numbers, np.diff(step.units.offsets))
        assert step.excluded.tolist() == [int(unit) in gone for unit in of_units]


def test_an_excluded_sample_is_an_empty_slot_and_counts_no_labels(blocks):
    made = blocks(40, pack=64)
    whole = all_steps(made, 3)
    out = whole[1].units.samples[[0, 2]]
    left = all_steps(made, 3, exclusion=Exclusion(np.sort(out)))
    step = left[1]
    assert step.units.samples.tolist() == whole[1].units.samples.tolist()
    share = step.share(units_per_rank=3, rank=0, world_size=1)
    assert share.units.samples[share.excluded].tolist() == out.tolist()
    assert not share.valid[share.excluded].any()
    sizes = whole[1].units.sizes
    assert step.labels == sizes.labels.sum() - sizes.labels[[0, 2]].sum()
    assert step.tokens == sizes.tokens.sum() - sizes.tokens[[0, 2]].sum()
    assert left[0].labels == whole[0].labels


def test_a_position_that_no_block_has_is_refused(blocks):
    with pytest.raises(StateMismatch, match="unit 50 of block 0, which has 20"):
        all_steps(blocks(20), 5, replace(Position(0), unit=50))
