"""What a plan amounts to, compared with what the ranks get one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.plan.groups import TEXT_LINEAR
from datapipe.plan.options import PlanOptions
from datapipe.plan.steps import Exclusion, Position, Step, walk
from datapipe.plan.summary import summarise
from datapipe.plan.units import Sizes, Units

from .test_steps import KINDS


def made_of(units, **options):
    """A step of units with these lengths of samples, which have no images."""
    lengths = np.array([length for unit in units for length in unit])
    offsets = np.cumsum([0, *(len(unit) for unit in units)])
    none = 0 * lengths
    step = Step(
        units=Units(
            np.arange(len(lengths)), offsets, Sizes(lengths, lengths // 2, none, none, none)
        ),
        start=Position(0),
        stop=Position(0, 0, len(units)),
        excluded=np.zeros(len(lengths), bool),
        labels=None,
        tokens=None,
        last=True,
    )
    return step, PlanOptions(shuffle=False, seed=0, **options)


def imbalance(steps, cost):
    """Return the mean share of the slowest rank's cost that the others wait for."""
    costs = [[cost(share.units.sizes) for share in step] for step in steps]
    return np.mean([1 - np.mean(each) / max(each) if max(each) else 0.0 for each in costs])


@settings(max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    samples=st.integers(1, 150),
    ranks=st.integers(1, 5),
    units_per_rank=st.integers(1, 4),
)
def test_a_summary_says_what_the_ranks_get(blocks, kind, samples, ranks, units_per_rank):
    options = PlanOptions(**{"shuffle": True, "seed": 3} | kind)
    if options.unit == "batch":
        units_per_rank = 1
    made = blocks(samples, block=50, **kind)
    steps = list(walk(made, Position(0), share=units_per_rank * ranks))
    how = {"units_per_rank": units_per_rank, "world_size": ranks}
    found = summarise(iter(steps), options, **how)
    shares = [[step.share(rank=rank, **how) for rank in range(ranks)] for step in steps]
    every = [share for step in shares for share in step]
    valid = [share.valid for share in every]
    sizes = [share.units.sizes[np.flatnonzero(ok)] for share, ok in zip(every, valid, strict=True)]
    assert found.steps == len(steps)
    assert found.units == sum(len(step.units) for step in steps)
    assert found.samples == samples == sum(int(ok.sum()) for ok in valid)
    assert found.repeats == sum(len(share.units) for share in every) - found.units
    assert found.tokens == sum(int(size.tokens.sum()) for size in sizes)
    assert found.labels == sum(int(size.labels.sum()) for size in sizes)
    assert found.images == sum(int(size.images.sum()) for size in sizes)
    assert sum(length_bin.samples for length_bin in found.histogram) == samples
    padded = [len(size.tokens) * max(size.tokens, default=0) for size in sizes]
    places = found.units * options.pack if options.pack else sum(padded)
    most_tokens = {
        "pack": max(step.units.total(step.units.sizes.tokens).max() for step in steps),
        "batch": max(padded),
        "sample": max(step.units.sizes.tokens.max() for step in steps),
    }
    assert found.most_tokens == most_tokens[options.unit]
    assert found.most_samples == max(np.diff(step.units.offsets).max() for step in steps)
    assert found.samples_per_unit == samples / found.units
    assert found.fill == pytest.approx(found.tokens / places)
    assert found.padding == pytest.approx(1 - found.fill)
    text = imbalance(shares, lambda of: (TEXT_LINEAR * of.tokens + of.tokens**2).sum())
    assert found.text_imbalance == pytest.approx(text)
    images = imbalance(shares, lambda of: of.vision.sum())
    assert found.image_imbalance == pytest.approx(images)


def test_samples_left_out_count_nowhere_but_keep_their_places(blocks):
    made = blocks(60, pack=64)
    plan = PlanOptions(shuffle=True, seed=3, pack=64)
    whole = summarise(walk(made, Position(0), share=1), plan, units_per_rank=1, world_size=1)
    out = Exclusion(np.arange(10))
    steps = list(walk(made, Position(0), share=1, exclusion=out))
    found = summarise(steps, plan, units_per_rank=1, world_size=1)
    assert (found.samples, found.units) == (50, whole.units)
    assert found.tokens == sum(step.tokens or 0 for step in steps)
    assert found.fill == pytest.approx(found.tokens / (whole.units * 64))


@given(lengths=st.lists(st.integers(1, 10**9), min_size=1, max_size=30))
def test_every_length_is_in_its_bin_of_the_histogram(lengths):
    step, plan = made_of([lengths], max_tokens=10**12)
    bins = summarise([step], plan, units_per_rank=1, world_size=1).histogram
    for length_bin in bins:
        inside = [length for length in lengths if length_bin.start <= length < length_bin.stop]
        assert len(inside) == length_bin.samples
    assert [length_bin.start for length_bin in bins[1:]] == [each.stop for each in bins[:-1]]
    assert bins[0].samples
    assert bins[-1].samples


def test_a_summary_of_many_samples_is_that_of_its_steps():
    """More samples than are added up at once, on two ranks."""
    step, plan = made_of([[7, 3]] * 20, pack=16)
    found = summarise([step] * 2000, plan, units_per_rank=10, world_size=2)
    assert (found.steps, found.units, found.samples) == (2000, 40_000, 80_000)
    assert (found.tokens, found.labels) == (400_000, 40_000 * (3 + 1))
    assert found.fill == pytest.approx(10 / 16)
    assert sum(each.samples for each in found.histogram) == 80_000


def test_without_steps_nothing_is_counted():
    plan = PlanOptions(shuffle=True, seed=0, pack=64)
    found = summarise([], plan, units_per_rank=1, world_size=8)
    assert (found.steps, found.units, found.samples) == (0, 0, 0)
