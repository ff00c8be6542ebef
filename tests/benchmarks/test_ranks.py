"""Packs, cost and simulation of `benchmarks.ranks`; nothing is timed."""

import numpy as np
import pytest

from benchmarks.plan import best_fit_decreasing
from benchmarks.ranks.__main__ import Round
from benchmarks.ranks.measure import Timed
from benchmarks.ranks.packs import Cost, balanced, draw, fit, imbalance, round_robin, terms

CAPACITY, RANKS = 2048, 4
COST = Cost(2e-4, 5e-8, 8e-3)


@pytest.fixture(scope="module")
def ways():
    sizes = draw(6000, CAPACITY, 16)
    return {
        "balanced": balanced(sizes, CAPACITY, RANKS),
        "by cost": balanced(sizes, CAPACITY, RANKS, COST),
        "round-robin": round_robin(sizes, CAPACITY, RANKS),
    }


def test_best_fit_takes_the_fullest_pack_that_has_room():
    assert best_fit_decreasing(np.array([5, 6, 4, 3, 2]), 10) == [[1, 2], [0, 3, 4]]


def test_every_way_fills_packs_with_different_samples(ways):
    for units in ways.values():
        tokens = terms(units)[:, 0]
        assert tokens.max() <= CAPACITY
        assert tokens.mean() > 0.99 * CAPACITY
        assert len(units) % RANKS == 0
        assert len(set(units.samples.tolist())) == len(units.samples)


def test_a_rank_without_a_plan_packs_every_fourth_sample(ways):
    units = ways["round-robin"]
    owners = np.repeat(np.arange(len(units)) % RANKS, np.diff(units.offsets))
    sizes = draw(6000, CAPACITY, 16)
    assert (units.samples % RANKS == owners).all()
    assert (sizes.tokens[units.samples] == units.sizes.tokens).all()


def test_balanced_packs_leave_ranks_less_to_wait_for(ways):
    found = {way: imbalance(COST.of(units).reshape(-1, RANKS)) for way, units in ways.items()}
    assert 1 <= found["by cost"] <= found["balanced"] < 1.05 < 1.1 < found["round-robin"]


def test_a_cost_is_found_again_in_the_seconds_it_gives(ways):
    units = ways["round-robin"].between(2 * RANKS, 22 * RANKS)
    assert len(units) == 20 * RANKS
    found, explained = fit(units, COST.of(units))
    assert found == pytest.approx(COST)
    assert explained == pytest.approx(1)
    with pytest.raises(ValueError, match="measure more steps"):
        fit(units, -COST.of(units))


def test_ways_are_compared_on_equal_work(ways):
    """Twice the cost of every sample, as in a run that drew longer ones, changes no ratio."""
    units = ways["round-robin"].between(0, 8 * RANKS)
    seconds = COST.of(units).reshape(-1, RANKS)
    found = [
        Round(units, Timed(scale * seconds, scale * seconds, 0 * seconds, 0.0)).work_rate(clock)
        for scale in (1, 2)
        for clock in ("wall", "own core")
    ]
    assert found == pytest.approx([1 / imbalance(seconds)] * 4, rel=0.05)
    assert found[0] == pytest.approx(seconds.mean(1).sum() / seconds.max(1).sum())
