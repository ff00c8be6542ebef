"""Batches of a step by the share of the exchange, and the learning rate that goes with them."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.vlm.data.batches import LABELS, accumulation_for, groups_of, samples_of_step
from examples.vlm.parallel import exchange
from examples.vlm.techniques import scaled_rate

from .test_vlm_model import FIXED, load
from .vlm_runs import PACKED, fit, torchrun


@given(
    compute=st.floats(0.01, 100),
    exchanged=st.floats(0, 100),
    target=st.floats(0.01, 0.99),
)
def test_the_accumulation_is_the_least_that_pays(compute, exchanged, target):
    batches = accumulation_for(exchanged / (compute + exchanged), target)

    def share(batches):
        return exchanged / (batches * compute + exchanged)

    assert share(batches) <= target * (1 + 1e-6)
    assert batches == 1 or share(batches - 1) >= target * (1 - 1e-6)


@pytest.mark.parametrize(("share", "target"), [(1.0, 0.1), (-0.1, 0.1), (0.5, 0.0), (0.5, 1.0)])
def test_shares_out_of_range_are_refused(share, target):
    with pytest.raises(ValueError, match="give shares of the time"):
        accumulation_for(share, target)


@given(
    sizes=st.lists(st.integers(1, 5), max_size=30),
    ends=st.sets(st.integers(1, 30), max_size=5),
    limit=st.sampled_from(["labels", "samples", "count"]),
    least=st.integers(1, 12),
    ranks=st.integers(1, 3),
)
def test_groups_are_as_small_as_they_can_be_and_end_with_the_epoch(
    sizes, ends, limit, least, ranks
):
    taken = asked = 0

    def batches():
        nonlocal taken
        for size in sizes:
            taken += 1
            yield {LABELS: size, "key": "x" * size}

    def ended():
        """Return whether an epoch has ended since the last call, as a run asks its loader."""
        nonlocal asked
        asked, before = taken, asked
        return not ends.isdisjoint(range(before + 1, taken + 1))

    def is_full(group):
        sums = {"labels": sum(group), "samples": ranks * sum(group), "count": len(group)}
        return sums[limit] >= least

    seen = []
    options = {"count": 1, limit: least, "ranks": ranks}
    for group in groups_of(batches(), **options, ends=ended):
        own = [batch[LABELS] for batch in group]
        seen += own
        assert taken == len(seen)  # none is taken before it is needed
        assert is_full(own) or taken in ends or taken == len(sizes)
        assert not is_full(own[:-1])
        assert not ends & {*range(taken - len(own) + 1, taken)}
    assert seen == sizes


def test_rates_follow_the_batch_by_its_rule():
    assert scaled_rate(1e-3, rule="linear", samples=256, base=64) == pytest.approx(4e-3)
    assert scaled_rate(1e-3, rule="sqrt", samples=256, base=64) == pytest.approx(2e-3)
    assert scaled_rate(1e-3, rule="sqrt", samples=16, base=64) == pytest.approx(0.5e-3)
    with pytest.raises(ValueError, match="needs the batch that --lr was found with; give --base"):
        scaled_rate(1e-3, rule="linear", samples=256, base=0)


def test_samples_of_a_step_are_known_from_the_plan(shards):
    packs = load(shards, FIXED, pack=300)
    steps = len(packs)
    assert samples_of_step(packs.plan.steps(), count=3) == pytest.approx(3 * 25 / steps)
    assert samples_of_step(packs.plan.steps(), count=1, samples=9) == 9
    labels = sum(int(batch["num_items_in_batch"]) for batch in packs)
    found = samples_of_step(packs.plan.steps(), count=1, labels=2 * labels)
    assert found == pytest.approx(50)
    ranks = load(shards, FIXED, batch_size=2, rank=1, world_size=3, drop_last=True)
    assert samples_of_step(ranks.plan.steps(), count=2) == 12


@pytest.mark.usefixtures("small_model")
def test_the_rate_of_a_run_is_scaled(shards, runs):
    four = ("--batch-size", 4, "--steps", 3, "--lr", 1e-3)
    fit(shards, *four)
    fit(shards, *four, "--scale-lr", "sqrt", "--base-batch", 1)
    fit(shards, *four, "--scale-lr", "linear", "--base-batch", 2, "--accumulate", 2)
    rates = [run.peak_rate for run in runs]
    # 25 samples in seven steps of 4: the last is filled with repeats, which teach nothing.
    batch = 25 / 7
    assert rates == pytest.approx([1e-3, 1e-3 * batch**0.5, 1e-3 * batch])


@pytest.mark.usefixtures("small_model")
def test_one_process_is_told_that_it_exchanges_nothing(shards, capfd):
    plain = fit(shards, *PACKED, "--steps", 2)
    auto = fit(shards, *PACKED, "--steps", 2, "--accumulate", "auto")
    assert "one process exchanges nothing, so 1 batch a step" in capfd.readouterr().err
    assert auto.losses == plain.losses


@pytest.mark.usefixtures("small_model")
def test_the_share_is_of_the_passes_that_exchange(shards, runs, monkeypatch):
    """Passes with an exchange take 4 s, the others 3, and noise comes on top."""
    passes = []
    noise = iter([9.0, 9.0, 0.5, 0.0, 0.0, 0.7, 0.3, 0.3, 0.1, 0.1, 0.2, 0.2])

    def seconds(run, batch, exchanges):
        passes.append(exchanges)
        return next(noise) + (4.0 if exchanges else 3.0)

    monkeypatch.setattr(exchange, "time_pass", seconds)
    fit(shards, *PACKED, "--steps", 1)
    assert exchange.exchange_share(runs[0], {}) == pytest.approx(0.25)
    assert passes == [True, False] * 6


@pytest.mark.campaign
def test_ranks_choose_the_same_accumulation_and_learn_as_with_it_given(shards):
    def train(accumulation):
        common = ("--device", "cpu", "--batch-size", 1, "--steps", 3, "--num-workers", 1)
        more = ("--accumulate", accumulation, "--json", "-")
        run = torchrun("examples.vlm.train", shards, *common, *more)
        out, said = run.communicate(timeout=300)
        assert run.returncode == 0, said
        return json.loads(out)["report"]["losses"], said

    losses, said = train("auto")
    (chosen,) = re.findall(r"(\d+) batches a step", said)
    assert losses == pytest.approx(train(chosen)[0], rel=1e-6)
