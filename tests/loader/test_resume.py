"""Every loader and every kind of plan goes through the one check of exact resume."""

import itertools
import re
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import datapipe
from datapipe import CacheSpec, ImageSpec, StateMismatch
from datapipe.decode.dali.graph import installed
from datapipe.testing import assert_resumes_exactly, assert_same_batches, valid_keys

from ..campaigns import rare
from .test_transform import darken

META = ("key", "valid", "num_items_in_batch")

CROPS = ImageSpec(size=24, resize="crop", random_crop=(0.2, 1.0), flip=0.5)
MIRRORED = ImageSpec(size=24, resize="crop", flip=0.5, normalize="imagenet")
PADDED = ImageSpec(size=(24, 40), resize="pad", normalize="imagenet")


def needs_dali(options):
    return pytest.param(
        options, marks=pytest.mark.skipif(not installed(), reason="DALI is not installed")
    )


PLANS = [
    rare({"batch_size": 4}),
    rare({"batch_size": 4, "group": 8}),
    {"batch_size": 3, "buckets": 4},
    rare({"batch_size": 5, "buckets": (30, 40)}),
    {"max_tokens": 200},
    rare({"pack": 200}),
    rare({"pack": 200, "shuffle": False}),
    {"pack": 200, "shuffle": "shards", "shards_mixed": 2},
    rare({"pack": datapipe.PackSpec(256, multiple_of=16), "batch_size": 2}),
    {"pack": datapipe.PackSpec(256, max_images=3, static_shapes=True)},
    rare({"pack": 200, "where": "images > 0"}),
    rare({"batch_size": 2, "where": "width >= 170"}),
    {"pack": 200, "exclude": ["000000003", 12, {"epoch": 0, "start": 2, "stop": 5}]},
    rare({"pack": 200, "epochs": 2}),
    rare({"batch_size": 4, "epochs": None, "run": datapipe.RunSpec(max_steps=25)}),
    {"pack": 200, "epochs": None, "run": datapipe.RunSpec(train_tokens=2500)},
]


@pytest.mark.parametrize("options", PLANS, ids=str)
def test_every_plan_resumes_exactly(make, text, options):
    whole = options.get("epochs", 1) == 1 and "exclude" not in options
    assert_resumes_exactly(
        lambda **more: make(text=text(), meta=META, image=ImageSpec(size=8), **options, **more),
        world_sizes=(1, 2, 3) if whole else (1,),
        stops=(0.4, 1.0),
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        rare({"shuffle": False}),
        {"drop_last": True},
        {"batch_size": 1, "seed": 9},
        rare({"batch_size": 37}),
        {"batch_size": 64},
        rare({"prefetch_factor": 7}),
        {"image": ImageSpec(size=16, normalize="clip", resize="pad")},
        {"image": None, "meta": ("id",)},
        {"image": CROPS, "transform": darken, "epochs": 2},
        {"cache": CacheSpec(memory=100_000)},
        {"cache": CacheSpec(device=1 << 30), "device": "cpu", "image": MIRRORED, "epochs": 2},
        {"device": "cpu", "image": ImageSpec(size=24, normalize="clip")},
        needs_dali({"decoder": "dali", "image": CROPS}),
        needs_dali({"decoder": "dali", "device": "cpu", "image": PADDED}),
    ],
    ids=lambda options: " ".join(options) or "plain",
)
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


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"seed": 1}, "seed"),
        ({"shuffle": False}, "shuffle"),
        ({"drop_last": True}, "drop_last"),
        ({"pack": 201}, "pack"),
        ({"group": 2}, "group"),
        ({"pack": datapipe.PackSpec(200, window=3)}, "pack_window"),
        ({"where": "images > 0"}, "where"),
        ({"pack": datapipe.PackSpec(200, max_images=3)}, "max_images"),
        ({"text": {"image_tokens": 7}}, "text.image_tokens"),
        ({"text": {"template": "caption"}}, "text.tokenizer_and_template"),
    ],
    ids=str,
)
def test_a_state_of_another_plan_names_the_difference(make, text, change, name):
    state = make(text=text(), pack=200, group=4).state_dict()
    options = {"pack": 200, "group": 4, **change, "text": text(**change.get("text", {}))}
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
