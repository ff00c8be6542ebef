"""Every loader and every kind of plan resumes exactly; what states say, and what is refused."""

import itertools
import json
import re
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import datapipe
from datapipe import CacheSpec, DatapipeError, ImageSpec, Loader, PlanError, StateMismatch
from datapipe.index.files.sealed_json import sum_of
from datapipe.testing import assert_resumes_exactly, assert_same_batches, valid_keys

from .stated import read, tried, with_specs
from .test_runs import take

META = ("key", "valid", "num_items_in_batch")


@pytest.mark.parametrize("options", tried("resumed", "plans"))
def test_every_plan_resumes_exactly(make, text, options):
    whole = options.get("epochs", 1) == 1 and "exclude" not in options
    assert_resumes_exactly(
        lambda **more: make(text=text(), meta=META, image=ImageSpec(size=8), **options, **more),
        world_sizes=(1, 2, 3) if whole else (1,),
        stops=(0.4, 1.0),
    )


@pytest.mark.parametrize("options", tried("resumed", "loaders"))
def test_every_loader_resumes_exactly(make, options):
    assert_resumes_exactly(
        lambda **more: make(**options, **more),
        world_sizes=(1,) if options.get("drop_last") else (1, 2, 3),
        stops=(0.3, 1.0),
    )


@pytest.mark.campaign
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_plans_resume_exactly(make, text, data):
    options = {
        "seed": data.draw(st.integers(0, 99)),
        "shuffle": data.draw(st.sampled_from([True, False, "shards"])),
        "prefetch_factor": data.draw(st.integers(1, 5)),
        "where": data.draw(st.sampled_from([None, "images < 2", "text_tokens % 2 == 0"])),
    }
    kind = data.draw(st.sampled_from(["sample", "buckets", "budget", "pack"]))
    if kind == "pack":
        tokens = data.draw(st.integers(100, 600))
        options["batch_size"] = data.draw(st.integers(1, 3))
        most = data.draw(st.sampled_from([None, 2, 5]))
        options["pack"] = datapipe.PackSpec(tokens, max_images=most)
    elif kind == "budget":
        options["max_tokens"] = data.draw(st.integers(100, 600))
    else:
        options["batch_size"] = data.draw(st.integers(1, 9))
        options["buckets"] = data.draw(st.integers(1, 9)) if kind == "buckets" else None
    worlds = data.draw(st.lists(st.integers(1, 6), min_size=2, max_size=3, unique=True))
    spec = text(
        max_length=data.draw(st.sampled_from([None, 50])),
        overlong=data.draw(st.sampled_from(["truncate", "drop"])),
    )
    assert_resumes_exactly(
        lambda **more: make(text=spec, meta=META, image=ImageSpec(size=8), **options, **more),
        world_sizes=worlds,
        stops=(data.draw(st.floats(0, 1)),),
    )


@pytest.mark.parametrize("unit", ["batch_size", "pack"])
def test_a_run_with_skipped_samples_resumes_exactly(damaged, text, unit):
    options = {"batch_size": 4, "meta": META[:2], "image": ImageSpec(size=16)}
    if unit == "pack":
        options = {"pack": 200, "meta": META, "text": text()}
    make = partial(datapipe.make_loader, damaged, on_error="skip", **options)
    assert any(not batch["valid"].all() for batch in make(num_workers=0))
    assert_resumes_exactly(make, stops=(0.6,))


@pytest.mark.parametrize(
    "options",
    [{"pack": 64}, {"pack": 64, "batch_size": 2}, {"max_tokens": 80}, {"pack": 64, "group": 6}],
    ids=str,
)
def test_the_order_is_the_same_on_any_number_of_ranks(make, text, options):
    def order(world_size):
        ranks = [
            make(text=text(), meta=META, rank=rank, world_size=world_size, **options)
            for rank in range(world_size)
        ]
        return [sorted(valid_keys(step)) for step in zip(*ranks, strict=True)]

    single = order(1)
    assert len(single) > 8  # eight ranks take more than a step
    for world_size in (2, 8):
        steps = (single[at : at + world_size] for at in range(0, len(single), world_size))
        assert order(world_size) == [sorted(itertools.chain(*step)) for step in steps]


def test_a_run_whose_steps_are_large_keeps_the_groups_of_its_first_launch(make, text):
    first = make(text=text(), meta=META, pack=64, rank=0, world_size=96)
    state = first.state_dict()
    assert state["plan"]["group"] == 96
    second = make(text=text(), meta=META, pack=64, rank=0, world_size=2)
    assert second.state_dict()["plan"]["group"] == 64
    second.load_state_dict(state)
    assert second.state_dict() == state


def test_a_world_size_that_does_not_divide_the_groups_warns_in_units_of_the_plan(
    make, text, caplog
):
    state = make(text=text(), pack=200, group=4, rank=0, world_size=4).state_dict()
    loader = make(text=text(), pack=200, rank=0, world_size=2)
    loader.load_state_dict(state)
    next(iter(loader))
    assert not caplog.records
    for rank in (0, 1, 2):
        loader = make(text=text(), pack=200, rank=rank, world_size=3)
        for _ in range(2):
            loader.load_state_dict(state)
            next(iter(loader))
    (record,) = caplog.records
    assert record.getMessage() == (
        "the work of the ranks is less equal: 4 packs of equal cost follow each other, and the 3 "
        "of a step (1 on each of 3 ranks) do not divide them; world sizes that do: 1, 2, 4; or "
        "begin a run with group=3, which has another order"
    )
    next(iter(make(text=text(), batch_size=3, buckets=2, rank=0, world_size=5)))
    assert "64 batches of equal cost follow each other, and the 5 of a step" in caplog.text
    assert "world sizes that do: 1, 2, 4, 8, 16, 32, 64;" in caplog.text
    caplog.clear()
    next(iter(make(text=text(), pack=200, batch_size=3, rank=0, world_size=1)))
    assert not caplog.records  # one rank has no other to wait for
    next(iter(make(text=text(), pack=200, batch_size=3, rank=0, world_size=2)))
    assert "the 6 of a step (3 on each of 2 ranks)" in caplog.text
    assert "give a batch_size that divides 64" in caplog.text


@pytest.mark.parametrize(("change", "name"), read("resumed")["others"], ids=str)
def test_a_state_of_another_plan_names_the_difference(make, text, change, name):
    state = make(text=text(), pack=200, group=4).state_dict()
    options = with_specs({"pack": 200, "group": 4, "text": {}} | change, text=text)
    with pytest.raises(StateMismatch, match=f"{name}: .* in the state, .* here"):
        make(**options).load_state_dict(state)


def test_ranks_that_share_a_folder_share_blocks(make, text, tmp_path, monkeypatch):
    def batches():
        return list(make(text=text(), pack=200, meta=META, cache=CacheSpec(plan=tmp_path)))

    expected = list(make(text=text(), pack=200, meta=META))
    for _ in range(2):
        assert_same_batches(batches(), expected)
    (kept,) = tmp_path.rglob("*.npz")
    kept.write_bytes(kept.read_bytes()[:-8] + b"\xff" * 8)
    assert_same_batches(batches(), expected)
    for entry in re.finditer(b"PK\x01\x02", kept.read_bytes()):  # of the list of arrays
        damaged = bytearray(kept.read_bytes())
        damaged[entry.start() + 33] ^= 2  # a comment that swallows the entries after it
        kept.write_bytes(damaged)
        assert_same_batches(batches(), expected)
    # Blocks that another version planned are not used.
    monkeypatch.setattr("datapipe.loader.schedule.run_schedule.PLAN_VERSION", 99)
    batches()
    assert len({kept.parent for kept in tmp_path.rglob("*.npz")}) == 2


def test_the_check_itself_notices_a_loader_that_does_not_resume(make):
    class Forgetful(Loader):
        def load_state_dict(self, state):
            others = {name: value for name, value in state.items() if name != "crc32"}
            others["unit"] = max(0, others["unit"] - 1)
            super().load_state_dict({**others, "crc32": sum_of(others)})

    def forgetful(**more):
        loader = make(**more)
        loader.__class__ = Forgetful
        return loader

    with pytest.raises(AssertionError):
        assert_resumes_exactly(forgetful)


def test_the_check_notices_equal_values_of_another_type():
    whole, real = torch.tensor([1]), torch.tensor([1.0])
    with pytest.raises(AssertionError, match="step 0: labels differs"):
        assert_same_batches([{"labels": whole}], [{"labels": real}])


def test_a_state_is_that_of_a_step_and_after_the_last_batch_of_the_next_epoch(make):
    loader = make(batch_size=10)
    iterator = iter(loader)
    states = [loader.state_dict()]
    for _ in range(len(loader)):
        next(iterator)
        states.append(loader.state_dict())
    assert [states[-1][name] for name in ("epoch", "block", "unit")] == [1, 0, 0]
    # Of an earlier step, for wrappers that fetch ahead.
    assert [loader.state_dict(step=step) for step in range(len(states))] == states
    with pytest.raises(PlanError, match="yielded 4"):
        loader.state_dict(step=5)
    assert next(iterator, None) is None
    assert loader.state_dict() == states[-1]
    loader.load_state_dict(states[1])  # steps are counted from there
    assert loader.state_dict(step=0) == states[1]
    next(iter(loader))
    assert [loader.state_dict(step=step) for step in (0, 1)] == states[1:3]


def test_set_epoch_keeps_the_position_in_the_current_epoch_alone(make):
    begun, resumed, jumped, counted = (make() for _ in range(4))
    take(begun, 3)
    for loader, epoch in ((resumed, 0), (jumped, 2)):
        loader.load_state_dict(begun.state_dict())
        loader.set_epoch(epoch)
    assert_same_batches(list(resumed), list(make())[3:])
    list(counted), list(counted)
    assert_same_batches(jumped, counted)


def test_batch_size_may_change_on_resume(make):
    before, after = make(batch_size=4), make(batch_size=7)
    begun = take(before, 3)
    after.load_state_dict(before.state_dict())
    assert valid_keys(begun) + valid_keys(after) == valid_keys(make(batch_size=1))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 99},
        {"plan_version": 99},
        {"fingerprint": "0" * 64},
        {"unit": 37},
        {"unit": -1},
        {"epoch": -1},
        *({"plan": None}, {"unit": "5"}, {"unit": 5.5}, {"block": -1}, {"fingerprint": 5}),
    ],
    ids=str,
)
def test_a_state_that_cannot_be_continued_is_refused(make, change):
    loader = make()
    with pytest.raises(StateMismatch):
        loader.load_state_dict({**loader.state_dict(), **change})
    with pytest.raises(StateMismatch):
        loader.load_state_dict({})


def test_setting_another_epoch_inside_a_loop_ends_the_loop(make):
    loader = make()
    iterator = iter(loader)
    next(iterator)
    loader.set_epoch(7)
    with pytest.raises(DatapipeError, match="closed"):
        next(iterator)
    assert (loader.state_dict()["epoch"], loader.state_dict()["unit"]) == (7, 0)


def test_the_state_is_small_json_also_with_integers_of_numpy(make):
    loader = make(seed=np.int64(3), batch_size=np.int32(4))
    loader.set_epoch(np.int64(2))
    next(iter(loader))
    text = json.dumps(loader.state_dict())
    assert json.loads(text) == loader.state_dict()
    assert len(text) < 1000
