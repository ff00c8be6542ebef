"""Draws of a mixture: any stretch is found alone, counts keep to the rates, orders are separate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.plan.mixture import DatasetOrder, Interleaving, Rates
from datapipe.plan.options import PlanOptions
from datapipe.plan.rng import derive

FAR = 10**12
SHUFFLED = PlanOptions(shuffle=True, seed=0)


def constant(rates):
    """Return rates that never change."""
    return made([0], [rates])


def keys_of(datasets, seed=0):
    return [derive(seed, number) for number in range(datasets)]


def made(starts, first, last=None):
    """Rates of rows that are scaled to sum to 1; without `last` they are constant in a segment."""

    def rows(values):
        table = np.array(values, np.float64)
        return table / table.sum(1, keepdims=True)

    begin = rows(first)
    return Rates(
        starts=np.array(starts, np.int64), first=begin, last=begin if last is None else rows(last)
    )


def ideal(rates, draw):
    """The integral of the rates up to a draw, segment by segment."""
    total = np.zeros(rates.first.shape[1])
    ends = [*rates.starts[1:].tolist(), None]
    for number, (start, end) in enumerate(zip(rates.starts.tolist(), ends, strict=True)):
        if draw <= start:
            break
        passed = (draw if end is None else min(draw, end)) - start
        first, last = rates.first[number], rates.last[number]
        stop = first if end is None else first + (last - first) * passed / (end - start)
        total += (first + stop) / 2 * passed
    return total


@st.composite
def random_rates(draw):
    """Up to eight datasets and four segments, some of them ramps, with rates of 0."""
    datasets = draw(st.integers(1, 8))
    lengths = draw(st.lists(st.integers(1, 60), max_size=3))
    weight = st.one_of(st.just(0.0), st.floats(1e-6, 1), st.sampled_from([1e-9, 0.5, 1.0]))
    row = st.lists(weight, min_size=datasets, max_size=datasets).filter(any)
    first = [draw(row) for _ in range(len(lengths) + 1)]
    last = [draw(st.one_of(st.just(one), row)) for one in first[:-1]] + [first[-1]]
    return made([0, *np.cumsum(lengths).tolist()], first, last)


@given(rates=random_rates(), start=st.integers(0, 300), length=st.integers(0, 90))
def test_a_stretch_is_that_of_the_whole_walk(rates, start, length):
    mixed = Interleaving(rates, keys_of(rates.first.shape[1]))
    datasets, turns = mixed.draws(0, 400)
    assert len(datasets) == len(turns) == 400
    some, own = mixed.draws(start, start + length)
    assert some.tolist() == datasets[start : start + length].tolist()
    assert own.tolist() == turns[start : start + length].tolist()
    counts = np.bincount(datasets[:start], minlength=len(mixed.counts(0)))
    assert mixed.counts(start).tolist() == counts.tolist()


@given(rates=random_rates(), start=st.integers(0, 300) | st.just(5000), length=st.integers(1, 100))
def test_counts_keep_to_the_rates_at_any_draw(rates, start, length):
    # Up to a time, each count is within 1 of the ideal one; the number of all draws up to it is so
    # far from the time itself at most as there are datasets.
    datasets = rates.first.shape[1]
    order = Interleaving(rates, keys_of(datasets))
    for draw in (start, start + length):
        counts = order.counts(draw)
        assert (counts < ideal(rates, draw + datasets) + 1 + 1e-9).all()
        assert (counts > ideal(rates, max(0, draw - datasets)) - 1 - 1e-9).all()


@pytest.mark.parametrize("datasets", [1, 2, 20, 2000])
@pytest.mark.parametrize("start", [0, 123_457, FAR, FAR + 987_654_321])
def test_shares_are_exact_over_any_ten_thousand_draws(datasets, start):
    weights = np.random.default_rng(datasets).dirichlet(np.ones(datasets))
    mixed = Interleaving(constant(weights.tolist()), keys_of(datasets))
    drawn, turns = mixed.draws(start, start + 10_000)
    counts = np.bincount(drawn, minlength=datasets)
    assert np.abs(counts / 10_000 - weights).max() <= 0.001
    assert (mixed.counts(start + 10_000) - mixed.counts(start)).tolist() == counts.tolist()
    for number in np.unique(drawn)[:50].tolist():
        own = turns[drawn == number]
        assert (np.diff(own) == 1).all()
        assert own[0] == mixed.counts(start)[number]


@pytest.mark.parametrize("start", [0, 49_990, 100_000, FAR - 100, FAR, 2 * FAR])
@pytest.mark.parametrize("ramp", [(50_000, 100_000), (1, FAR), (FAR, FAR + 1000)], ids=str)
def test_far_stretches_are_found_alone(start, ramp):
    rates = made([0, *ramp], [[1, 0], [1, 0], [0, 1]], [[1, 0], [0, 1], [0, 1]])
    mixed = Interleaving(rates, keys_of(2))
    datasets, turns = mixed.draws(start, start + 200)
    counts = mixed.counts(start)
    for at in range(0, 193, 13):
        some, own = mixed.draws(start + at, start + at + 7)
        assert some.tolist() == datasets[at : at + 7].tolist()
        assert own.tolist() == turns[at : at + 7].tolist()
    for number in range(2):
        own = turns[datasets == number]
        assert own.tolist() == list(range(counts[number], counts[number] + len(own)))
    assert np.abs(counts - ideal(rates, start)).max() <= 2


@pytest.mark.parametrize("seed", range(6))
def test_draws_at_even_rates_are_not_periodic(seed):
    """A rank that takes every n-th draw sees all datasets, for any n."""
    mixed = Interleaving(constant([0.5, 0.5]), keys_of(2, seed))
    drawn, _ = mixed.draws(0, 6000)
    for ranks in (2, 3, 4, 8):
        for rank in range(ranks):
            own = drawn[rank::ranks]
            assert 0.43 < own.mean() < 0.57
            # Neither the next nor the one after it can be told from one draw.
            assert abs(np.corrcoef(own[:-1], own[1:])[0, 1]) < 0.15


def test_which_dataset_comes_first_is_even():
    rates = constant([0.5, 0.5])
    first = [Interleaving(rates, keys_of(2, seed)).draws(0, 1)[0][0] for seed in range(400)]
    assert 150 < sum(first) < 250


def test_another_dataset_moves_no_turn_of_the_others_past_each_other():
    """The others come in the same order, as long as their shares to each other are the same."""
    two = Interleaving(constant([0.6, 0.4]), keys_of(2))
    three = Interleaving(constant([0.3, 0.2, 0.5]), keys_of(3))
    drawn, turns = three.draws(0, 4000)
    old = drawn < 2
    expected = two.draws(0, int(old.sum()))
    assert drawn[old].tolist() == expected[0].tolist()
    assert turns[old].tolist() == expected[1].tolist()


@given(
    samples=st.integers(1, 40),
    key=st.integers(0, 2**64 - 1),
    start=st.integers(0, 200),
    length=st.integers(0, 100),
    shuffle=st.sampled_from([True, False, "shards"]),
)
def test_each_pass_of_a_dataset_has_every_sample_once(samples, key, start, length, shuffle):
    shards = [samples // 3, samples - samples // 3]
    options = PlanOptions(shuffle=shuffle, seed=0, shards_mixed=1)
    order = DatasetOrder(samples, options, key=key, shards=shards)
    passes, indices = order(np.arange(5 * samples))
    assert passes.tolist() == np.repeat(np.arange(5), samples).tolist()
    for number in range(5):
        assert sorted(indices[passes == number].tolist()) == list(range(samples))
    again, some = order(np.arange(5 * samples)[start : start + length])
    assert again.tolist() == passes[start : start + length].tolist()
    assert some.tolist() == indices[start : start + length].tolist()
    if not shuffle:
        assert indices.tolist() == list(range(samples)) * 5


@given(
    old=st.integers(1, 30), new=st.integers(1, 30), turns=st.integers(0, 100), key=st.integers(0, 9)
)
def test_growth_by_a_cursor_finishes_the_pass_and_takes_all_in_the_next(old, new, turns, key):
    before = DatasetOrder(old, SHUFFLED, key=key)
    cursor = before.cursor(turns)
    grown = DatasetOrder(old + new, SHUFFLED, key=key, start=cursor)
    rest = (old - turns % old) if turns % old else old
    passes, indices = grown(np.arange(rest + 2 * (old + new)))
    expected = before(np.arange(turns, turns + rest))
    assert passes[:rest].tolist() == expected[0].tolist()
    assert indices[:rest].tolist() == expected[1].tolist()
    after = indices[rest:].reshape(2, -1).tolist()
    assert all(sorted(one) == list(range(old + new)) for one in after)
    assert passes[rest:].tolist() == (passes[0] + np.repeat([1, 2], old + new)).tolist()
    # A cursor of a cursor: however often a run is stopped.
    for turn in (0, rest - 1, rest, rest + old):
        onwards = DatasetOrder(old + new, SHUFFLED, key=key, start=grown.cursor(turn))
        more = onwards(np.arange(10))
        there = grown(np.arange(turn, turn + 10))
        assert [part.tolist() for part in more] == [part.tolist() for part in there]


@pytest.mark.parametrize(
    ("starts", "first", "last", "told"),
    [
        ([0], [[0.5, 0.5], [0.5, 0.5]], None, "of one form"),
        ([1], [[1.0]], None, "begin at 0"),
        ([0, 5, 5], [[1.0], [1.0], [1.0]], None, "ascend"),
        ([0], [[0.7, 0.7]], None, "together are 1"),
        ([0], [[1.5, -0.5]], None, "negative"),
        ([0], [[np.nan, 1.0]], None, "negative"),
        ([0], [[0.5, 0.5]], [[0.4, 0.6]], "no end"),
    ],
)
def test_impossible_rates_are_refused(starts, first, last, told):
    begin = np.array(first)
    end = begin if last is None else np.array(last)
    with pytest.raises(AssertionError, match=told):
        Rates(starts=np.array(starts), first=begin, last=end)


@given(rates=random_rates(), draw=st.integers(0, 300))
def test_rates_from_a_draw_on_are_the_rest_of_the_line(rates, draw):
    rest = rates.after(draw)
    for more in (0, 1, 17, 150):
        expected = ideal(rates, draw + more) - ideal(rates, draw)
        assert ideal(rest, more) == pytest.approx(expected, abs=1e-6)
