"""Rates and epochs, against exact fractions and simulated draws."""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from datapipe import Mixture, PlanError
from datapipe.mixture import resolve
from datapipe.quantities import take_amount

RESOLVED, UNRESOLVED = (
    yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text("utf-8"))
    for name in ("resolved", "unresolved")
)


def sizes_of(*counts):
    return np.array(counts, np.int64)


def means_of(*tokens):
    return np.array(tokens, np.float64)


def resolved(case):
    """Resolve a mixture as a case gives it."""
    tokens = means_of(*case["tokens"]) if "tokens" in case else None
    step = take_amount(case["step"]) if "step" in case else None
    return resolve(Mixture.of(case["mixture"]), sizes_of(*case["sizes"]), tokens, step)


@st.composite
def schedules(draw):
    """Draw sizes, weights (one row more than changes) and changes as (start, over) in samples."""
    datasets = draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 500), min_size=datasets, max_size=datasets))
    changes = []
    at = draw(st.sampled_from([0, 3]))
    for _ in range(draw(st.integers(0, 3))):
        over = draw(st.sampled_from([0, 0, 1, 7, 100]))
        changes.append((at, over))
        at += over + draw(st.integers(1, 300))
    row = st.lists(st.integers(0, 9), min_size=datasets, max_size=datasets).filter(any)
    weights = draw(st.lists(row, min_size=len(changes) + 1, max_size=len(changes) + 1))
    used = weights[1:] if changes[:1] == [(0, 0)] else weights
    assume(all(any(column) for column in zip(*used, strict=True)))
    return sizes, weights, changes


def mixture_of(weights, changes, epoch="longest"):
    names = [f"d{number}" for number in range(len(weights[0]))]
    content = {"epoch": epoch, "datasets": dict(zip(names, weights[0], strict=True))}
    schedule = [
        {"from": start, "over": over, "weights": dict(zip(names, row, strict=True))}
        for (start, over), row in zip(changes, weights[1:], strict=True)
    ]
    return Mixture.of(content | ({"schedule": schedule} if changes else {}))


def exact_segments(weights, changes):
    rows = [[Fraction(weight, sum(row)) for weight in row] for row in weights]
    segments = []
    at = 0
    for (start, over), before, after in zip(changes, rows[:-1], rows[1:], strict=True):
        if start > at:
            segments.append((at, start - at, before, before))
        if over:
            segments.append((start, over, before, after))
        at = start + over
    return [*segments, (at, 0, rows[-1], rows[-1])]


def drawn(segments, draws):
    """Return the exact integrals of the rates over the first draws."""
    totals = [Fraction(0)] * len(segments[0][2])
    for start, length, first, last in segments:
        over = min(draws - start, length or draws)
        if over <= 0:
            break
        for number, (begin, end) in enumerate(zip(first, last, strict=True)):
            slope = (end - begin) / (2 * length) if length else 0
            totals[number] += over * (begin + slope * over)
    return totals


@given(schedules())
def test_rates_and_the_longest_and_shortest_epoch_are_those_of_exact_fractions(case):
    sizes, weights, changes = case
    segments = exact_segments(weights, changes)
    found = resolve(mixture_of(weights, changes, "shortest"), sizes_of(*sizes))
    rates, shortest = found.rates, found.epoch
    assert rates.starts.dtype == np.int64
    assert rates.starts.tolist() == [segment[0] for segment in segments]
    for rows, side in ((rates.first, 2), (rates.last, 3)):
        assert rows.dtype == np.float64
        for row, segment in zip(rows.tolist(), segments, strict=True):
            assert math.fsum(row) == pytest.approx(1, abs=1e-15)
            assert row == pytest.approx([float(rate) for rate in segment[side]], rel=1e-14)
    assert rates.first[-1].tolist() == rates.last[-1].tolist()

    def complete(draws):
        return all(map(lambda got, size: got >= size, drawn(segments, draws), sizes))

    def repeated(draws):
        return any(map(lambda got, size: got > size, drawn(segments, draws), sizes))

    end = 30_000
    assert not repeated(shortest)
    assert repeated(shortest + 1)
    if not complete(end):
        with pytest.raises(PlanError, match="'longest' never ends"):
            resolve(mixture_of(weights, changes), sizes_of(*sizes))
        return
    longest = resolve(mixture_of(weights, changes), sizes_of(*sizes)).epoch
    assert complete(longest)
    assert not complete(longest - 1)


@pytest.mark.parametrize("name", RESOLVED)
def test_rates_and_epochs_follow_from_the_mixture(name):
    case = RESOLVED[name]
    found = resolved(case)
    assert case.get("epoch", found.epoch) == found.epoch
    assert case.get("starts", found.rates.starts.tolist()) == found.rates.starts.tolist()
    if "first" in case:
        assert found.rates.first == pytest.approx(np.array(case["first"]), rel=1e-12)


@given(
    first=st.integers(1, 50),
    last=st.integers(1, 50),
    over=st.integers(1, 200),
    tokens=st.integers(1, 12_000),
)
def test_an_epoch_in_tokens_ends_with_the_draw_that_reaches_them(first, last, over, tokens):
    content = {
        "epoch": f"{tokens} tokens",
        "datasets": {"a": 1, "b": 0},
        "schedule": [{"over": over, "weights": {"a": 0, "b": 1}}],
    }
    epoch = resolve(Mixture.of(content), sizes_of(5, 5), means_of(first, last)).epoch

    def total(draws):
        ramp = min(draws, over)
        return ramp * (first + Fraction(last - first, 2 * over) * ramp) + (draws - ramp) * last

    assert total(epoch) >= tokens > total(epoch - 1)


def test_a_change_added_to_the_schedule_leaves_the_past_as_it_was():
    first = {"from": "1k tokens", "over": "700 tokens", "weights": {"a": 0.9}}
    later = {"from": "9k tokens", "weights": {"b": 0.3}}
    content = {"epoch": "shortest", "weights": "tokens", "datasets": {"a": 0.1, "b": 0.7}}
    short, long = (
        resolve(Mixture.of(content | {"schedule": changes}), sizes_of(50, 70), means_of(3, 7)).rates
        for changes in ([first], [first, later])
    )
    assert len(long.starts) == len(short.starts) + 1
    for name in ("starts", "first", "last"):
        before, after = getattr(short, name), getattr(long, name)
        assert before.tobytes() == after[: len(before)].tobytes()


@pytest.mark.parametrize("case", UNRESOLVED, ids=range(len(UNRESOLVED)))
def test_mixtures_without_rates_or_an_end_are_refused(case):
    with pytest.raises(PlanError) as refused:
        resolved(case)
    assert str(refused.value) == case["message"]
