"""Runs of several epochs, of steps and of tokens; what is excluded; a look at the plan."""

import json

import pytest
import torch

from datapipe import CacheSpec, EndlessError, ImageSpec, PlanError, RunSpec
from datapipe.testing import assert_same_batches, valid_keys

META = ("key", "valid", "num_items_in_batch")


def take(loader, steps):
    iterator = iter(loader)
    return [next(iterator) for _ in range(steps)]


def epochs_of(make, count, **options):
    loader = make(**options)
    return [batch for _ in range(count) for batch in loader]


def test_a_run_of_epochs_or_of_steps_is_one_iteration(make):
    loader, steps = make(epochs=3), make(epochs=None, run=RunSpec(max_steps=23))
    assert (len(loader), len(steps)) == (30, 23)
    expected = epochs_of(make, 3)
    assert_same_batches(list(loader), expected)
    assert_same_batches(list(steps), expected[:23])
    assert loader.epoch == 3
    for most, count in ((4, 4), (400, 10)):  # within an epoch
        run = RunSpec(max_steps=most)
        assert len(make(run=run)) == len(list(make(run=run))) == count


@pytest.mark.parametrize("options", [{"pack": 200}, {"max_tokens": 200}], ids=str)
def test_the_length_of_a_run_of_steps_plans_no_more_than_that(make, text, options, tmp_path):
    """Each planned epoch is a file in the plan's folder."""
    options = options | {"text": text(), "num_workers": 0}
    whole = len(make(**options))
    cases = [(1, 3, 1), (whole, 3, 1), (whole + 1, 3, 2), (3 * whole + 9, 3, 3), (5, None, 0)]
    for number, (steps, epochs, planned) in enumerate(cases):
        cache = CacheSpec(plan=tmp_path / str(number))
        loader = make(run=RunSpec(max_steps=steps), epochs=epochs, cache=cache, **options)
        said = len(loader)
        assert len(list((tmp_path / str(number)).rglob("*.npz"))) == planned
        assert said == len(list(loader))


def test_a_run_of_tokens_ends_with_the_step_that_reaches_them(make, text):
    whole = epochs_of(make, 3, text=text(), pack=200)
    batches = list(make(text=text(), pack=200, epochs=None, run=RunSpec(train_tokens=2500)))
    assert_same_batches(batches, whole[: len(batches)])
    counted = [int(batch["cu_seq_lens_q"][-1]) for batch in batches]
    assert sum(counted) >= 2500 > sum(counted[:-1])


def test_epochs_without_end_have_no_length(make):
    loader = make(epochs=None)
    with pytest.raises(EndlessError, match="max_steps"):
        len(loader)
    assert len(take(loader, 25)) == 25


def test_a_finished_run_of_steps_stays_finished_when_resumed(make):
    loader = make(epochs=None, run=RunSpec(max_steps=7))
    first = list(loader)
    resumed = make(epochs=None, run=RunSpec(max_steps=7))
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == []
    assert_same_batches([*first, *loader], epochs_of(make, 2)[:14])  # the next run goes on


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"pack": 200}], ids=str)
def test_a_run_that_begins_within_an_epoch_knows_its_length(make, text, options):
    loader = make(text=text(), epochs=2, run=RunSpec(max_steps=7), **options)
    steps = [(len(loader), len(list(loader))) for _ in range(5)]
    assert all(said == taken for said, taken in steps), steps


def test_the_length_counts_what_is_excluded_from_the_rest_of_an_epoch(make):
    plan = make().plan
    out = [plan.step(2), plan.step(6), plan.step(8)]
    loader = make(epochs=1, run=RunSpec(max_steps=4), exclude=out)
    steps = [(len(loader), len(list(loader))) for _ in range(3)]
    assert steps == [(4, 4), (3, 3), (4, 4)]
    # A run whose last epoch is left out ends before it.
    loader = make(epochs=2, exclude={"epoch": 1, "start": 0, "stop": 37})
    assert len(loader) == len(list(loader)) == 10
    assert loader.epoch == 2


def test_leaving_a_run_and_iterating_again_starts_it_over(make):
    loader = make(epochs=2)
    take(loader, 15)
    assert (loader.state_dict()["epoch"], loader.state_dict()["unit"]) == (1, 20)
    assert_same_batches(take(loader, 3), epochs_of(make, 1)[:3])


def test_accumulation_follows_from_the_world_size(make):
    run = RunSpec(global_batch_size=24)
    assert make(run=run).accumulation_steps == 6
    assert make(run=run, rank=1, world_size=3).accumulation_steps == 2
    assert make().accumulation_steps == 1


@pytest.mark.parametrize(
    "options", [{"batch_size": 3}, {"pack": 200}, {"max_tokens": 150}], ids=str
)
def test_the_plan_shows_what_every_rank_will_see(make, text, options):
    ranks = [
        list(make(text=text(), meta=META, rank=rank, world_size=2, **options)) for rank in range(2)
    ]
    plan = make(text=text(), rank=0, world_size=2, **options).plan
    for step in (0, 2, len(ranks[0]) - 1):
        shown = plan.step(step)
        for rank in range(2):
            assert shown.ranks[rank].keys == ranks[rank][step]["key"]
            assert shown.ranks[rank].valid == ranks[rank][step]["valid"].tolist()
        assert shown.labels == ranks[0][step]["num_items_in_batch"]
        assert shown.ranks[0].keys[0] in str(shown)
    with pytest.raises(PlanError, match=f"0 to {len(ranks[0]) - 1}"):
        plan.step(len(ranks[0]))
    with pytest.raises(PlanError, match="step -1"):
        plan.step(-1)


def test_steps_that_are_excluded_do_not_come(make, text):
    options = {"text": text(), "pack": 200, "meta": META}
    whole, plan = list(make(**options)), make(**options).plan
    loader = make(exclude=[plan.step(2), plan.step(3).to_dict()], **options)
    assert len(loader) == len(whole) - 2
    assert_same_batches(list(loader), whole[:2] + whole[4:])


@pytest.mark.parametrize(
    ("other", "cause"),
    [
        ({"pack": 100}, "pack: 200 there, 100 here"),
        ({"seed": 9}, "seed: 0 there, 9 here"),
        ({"where": "images > 0"}, "where: None there"),
        ({"group": 3}, "group: 64 there, 3 here"),
    ],
    ids=str,
)
@pytest.mark.parametrize("as_dict", [False, True])
def test_a_step_of_another_plan_is_not_excluded_in_silence(make, text, other, cause, as_dict):
    options = {"text": text(), "pack": 200}
    step = make(rank=0, world_size=2, **options).plan.step(1)
    step = json.loads(json.dumps(step.to_dict())) if as_dict else step
    with pytest.raises(PlanError, match=cause):
        make(exclude=step, **options | other)


@pytest.mark.parametrize("group", [None, 2], ids=str)
def test_a_step_seen_on_other_ranks_is_excluded(make, text, group):
    options = {"text": text(), "pack": 200}
    two = make(group=group, rank=0, world_size=2, **options)
    step = two.plan.step(1)
    loader = make(meta=META, exclude=step, **options)
    if group is not None:  # a group that is known once the state is loaded
        for ask in (iter, len):
            with pytest.raises(PlanError, match="group: 2 there, 64 here"):
                ask(loader)
        loader.load_state_dict(two.state_dict())
    gone = {key for rank in step.ranks for key in rank.keys}
    assert {*valid_keys(make(meta=META, **options))} - {*valid_keys(loader)} == gone


def test_samples_that_are_excluded_become_empty_slots(make, text):
    options = {"text": text(), "pack": 200, "meta": META}
    whole = list(make(**options))
    bad = whole[1]["key"][0]
    batches = list(make(exclude=bad, **options))
    assert_same_batches(batches[:1] + batches[2:], whole[:1] + whole[2:])
    batch = batches[1]
    assert batch["valid"].tolist() == [False] + [True] * (len(batch["key"]) - 1)
    stop = int(batch["cu_seq_lens_q"][1])
    assert (batch["labels"][0, :stop] == -100).all()
    assert torch.equal(batch["input_ids"][0, stop:], whole[1]["input_ids"][0, stop:])
    assert batch["num_items_in_batch"] == int((batch["labels"] != -100).sum())
    assert sorted(valid_keys(batches)) == sorted(set(valid_keys(whole)) - {bad})


@pytest.mark.parametrize("options", [{}, {"meta": ("source", "id")}])
def test_nothing_of_an_excluded_sample_is_in_its_slot(make, options):
    spec = ImageSpec(size=16, normalize="clip")
    bad = "000000003"  # it has two images
    (batch,) = (b for b in make(image=spec, exclude=bad, **options) if bad in b["key"])
    slot = batch["key"].index(bad)
    start = int(batch["images_per_sample"][:slot].sum())
    assert batch["images_per_sample"][slot] == 2
    assert not batch["valid"][slot]
    assert batch["text"][slot] == ""
    assert batch["pixel_values"][start : start + 2].eq(0).all()
    assert batch["pixel_values"].ne(0).any()
    if options:
        assert batch["id"][slot] is None
        assert batch["source"][slot] is not None


def test_a_run_goes_on_with_something_excluded_after_it_was_saved(make):
    loader = make(meta="sample")
    take(loader, 3)
    resumed = make(exclude=loader.plan.step(5))
    resumed.load_state_dict(loader.state_dict())
    whole = list(make())
    assert_same_batches(list(resumed), whole[3:5] + whole[6:])
