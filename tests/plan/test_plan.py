import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.errors import PlanError
from datapipe.plan.plan import EpochPlan, PlanOptions, Step, check_ranks

SHUFFLED = PlanOptions(shuffle=True, seed=3)
IN_ORDER = PlanOptions(shuffle=False, seed=3)


def all_steps(
    plan: EpochPlan, batch_size: int, world_size: int, start: int = 0
) -> list[list[Step]]:
    """Every step from a position on, as each rank sees it."""
    steps = []
    count = plan.steps_left(start, share=batch_size * world_size)
    for _ in range(count):
        steps.append(
            [
                plan.step(start, batch_size=batch_size, rank=rank, world_size=world_size)
                for rank in range(world_size)
            ]
        )
        start = steps[-1][0].stop
    assert start == plan.samples
    return steps


def valid_units(steps: list[list[Step]]) -> list[int]:
    """Valid samples in global order."""
    return [
        int(sample)
        for ranks in steps
        for samples, valid in zip(
            np.stack([step.samples for step in ranks], 1).tolist(),
            np.stack([step.valid for step in ranks], 1).tolist(),
            strict=True,
        )
        for sample, is_valid in zip(samples, valid, strict=True)
        if is_valid
    ]


@given(
    samples=st.integers(1, 300),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 7),
    epoch=st.integers(0, 5),
)
def test_ranks_together_take_every_sample_once_in_the_global_order(
    samples: int, batch_size: int, world_size: int, epoch: int
) -> None:
    plan = EpochPlan(samples, SHUFFLED, epoch)
    taken = valid_units(all_steps(plan, batch_size, world_size))
    assert taken == plan.units(0, samples).tolist()
    assert sorted(taken) == list(range(samples))


@given(
    samples=st.integers(1, 300),
    first=st.tuples(st.integers(1, 5), st.integers(1, 4)),
    second=st.tuples(st.integers(1, 5), st.integers(1, 4)),
    stop=st.floats(0, 1),
)
def test_other_ranks_can_go_on_where_some_stopped(
    samples: int, first: tuple[int, int], second: tuple[int, int], stop: float
) -> None:
    plan = EpochPlan(samples, SHUFFLED, epoch=0)
    before = all_steps(plan, *first)
    before = before[: int(stop * len(before))]
    position = before[-1][0].stop if before else 0
    after = all_steps(plan, *second, start=position)
    assert valid_units(before) + valid_units(after) == plan.units(0, samples).tolist()


def test_the_last_step_repeats_its_own_units_marked_as_not_valid() -> None:
    plan = EpochPlan(10, IN_ORDER, epoch=0)
    last = all_steps(plan, batch_size=2, world_size=2)[-1]
    assert [step.samples.tolist() for step in last] == [[8, 8], [9, 9]]
    assert [step.valid.tolist() for step in last] == [[True, False], [True, False]]


def test_a_last_step_with_fewer_units_than_ranks_gives_every_rank_a_batch() -> None:
    last = all_steps(EpochPlan(9, IN_ORDER, epoch=0), batch_size=2, world_size=4)[-1]
    assert [step.samples.tolist() for step in last] == [[8, 8]] * 4
    assert sum(int(step.valid.sum()) for step in last) == 1


def test_drop_last_leaves_out_the_step_that_is_not_full() -> None:
    dropping = EpochPlan(10, PlanOptions(shuffle=False, seed=0, drop_last=True), epoch=0)
    keeping = EpochPlan(10, PlanOptions(shuffle=False, seed=0), epoch=0)
    assert dropping.steps_left(0, share=4) == 2
    assert keeping.steps_left(0, share=4) == 3
    assert dropping.steps_left(8, share=4) == 0
    assert dropping.steps_left(0, share=5) == 2


def test_without_shuffling_the_order_is_that_of_the_dataset() -> None:
    assert EpochPlan(7, IN_ORDER, epoch=4).units(2, 6).tolist() == [2, 3, 4, 5]


def test_order_changes_with_the_epoch_and_with_the_seed() -> None:
    orders = {
        tuple(EpochPlan(50, PlanOptions(shuffle=True, seed=seed), epoch).units(0, 50).tolist())
        for seed in range(4)
        for epoch in range(4)
    }
    assert len(orders) == 16


def test_negative_and_huge_seeds_are_seeds_like_any_other() -> None:
    for seed in (-1, 2**70):
        units = EpochPlan(20, PlanOptions(shuffle=True, seed=seed), epoch=0).units(0, 20)
        assert sorted(units.tolist()) == list(range(20))


@pytest.mark.parametrize(("rank", "world_size"), [(0, 0), (2, 2), (-1, 2), (0, -3)])
def test_impossible_ranks_are_refused(rank: int, world_size: int) -> None:
    with pytest.raises(PlanError, match="rank"):
        check_ranks(rank, world_size)
