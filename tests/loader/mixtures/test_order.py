"""The order of a mixture: the same for all who make it, and resumed exactly."""

import json
from collections import Counter

import hypothesis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from datapipe import CacheSpec, ImageSpec, RunSpec
from datapipe.testing import assert_resumes_exactly, assert_same_batches

from ...campaigns import rare
from ..stated import tried
from .datasets import META, SIZES, draws, of, pixels_of, plain

UNITS = tried("resumed", "mixtures")


@pytest.mark.parametrize("options", UNITS)
def test_batches_are_the_same_whoever_makes_them(make, options, tmp_path):
    expected = list(make(**options))
    assert {name for name, _ in draws(expected)} == set(SIZES)
    disk = CacheSpec(disk=tmp_path / "disk", disk_size="20MB")
    ways = {
        "threads": {"num_workers": 2, "prefetch_factor": 3, "verify": False},
        "little memory": {"cache": CacheSpec(memory=20_000, policy="next-use"), "num_workers": 2},
        "encoded": {"cache": CacheSpec(memory="20MB", keep="encoded")},
        "disk": {"cache": disk, "num_workers": 2},
        "disk again": {"cache": disk},
        "plan": {"cache": CacheSpec(plan=tmp_path / "plan")},
        "plan again": {"cache": CacheSpec(plan=tmp_path / "plan"), "num_workers": 2},
        "device": {"device": "cpu"},
        "processes": {"workers": "processes", "num_workers": 1},
    }
    for name, way in ways.items():
        loader = make(**options, **way)
        assert_same_batches(loader, expected, name)
        loader.close()


@pytest.mark.parametrize("options", UNITS)
def test_a_mixture_resumes_exactly(make, options):
    whole = options.get("epochs", 1) == 1
    assert_resumes_exactly(
        lambda **more: make(**options, **more), world_sizes=(1, 3) if whole else (1,), stops=(0.3,)
    )


@pytest.mark.parametrize("every", [5, rare(1)])
@pytest.mark.parametrize(
    "units", [rare({"batch_size": 1}), {"pack": 96}, rare({"max_tokens": 120})], ids=str
)
def test_a_run_is_stopped_and_resumed_again_and_again(make, units, every):
    """After every few steps other ranks go on; together they see what one rank sees, in order."""
    options = {**units, "group": 6, "epochs": 2}
    whole = draws(make(**options))
    found = []
    state, turn, over = None, 0, False
    while not over:
        world = (1, 2, 3)[turn % 3]
        turn += 1
        ranks, states = [], []
        for rank in range(world):
            loader = make(**options, rank=rank, world_size=world, num_workers=turn % 2)
            if state is not None:
                loader.load_state_dict(json.loads(state))
            iterator = iter(loader)
            ranks.append([batch for _, batch in zip(range(every), iterator, strict=False)])
            states.append(json.dumps(loader.state_dict()))
            iterator.close()
        assert len(set(states)) == 1
        steps = list(zip(*ranks, strict=True))
        found += [draw for step in steps for draw in draws(step)]
        state = states[0]
        over = json.loads(state)["epoch"] == 2
        assert steps
    assert turn > 4
    assert found == whole


def test_random_numbers_and_orders_do_not_depend_on_other_datasets(make, mixture):
    """Another dataset moves samples, and changes no pixel of theirs."""

    def pixels(parts):
        found = {name: [] for name in SIZES}
        loader = make(mixture(parts=parts), batch_size=1, meta=(*META, "images_per_sample"))
        for batch in loader:
            for name, key in draws([batch]):
                found[name].append((key, pixels_of(batch)))
        return found

    two, four = pixels(("captions", "drawings")), pixels(tuple(SIZES))
    for name in ("captions", "drawings"):
        count = min(len(two[name]), len(four[name]))
        assert count > 4
        assert two[name][:count] == four[name][:count]


def test_a_dataset_goes_on_from_pass_to_pass_over_the_whole_run(make):
    """No sample comes twice before all of its pass have come, over all epochs."""
    run = {"batch_size": 5, "epochs": None, "run": RunSpec(max_steps=70)}
    for options in ({"batch_size": 4, "epochs": 3}, run):
        found = draws(make(drop_last=False, **options))
        for name, size in SIZES.items():
            own = of(name, found)
            passes = [own[start : start + size] for start in range(0, len(own) - size + 1, size)]
            assert len(own) > size
            assert all(len(set(one)) == size for one in passes)
            if size > 4:
                assert len({tuple(one) for one in passes}) == len(passes)


def test_tokens_are_the_shares_where_weights_are_by_tokens(make, folders):
    given = {
        "datasets": plain("chats", "captions", "drawings", folders=folders),
        "weights": "tokens",
        "epoch": "20k tokens",
    }
    tokens: Counter[str] = Counter()
    for batch in make(given, batch_size=1, image=None):
        (name, _), *_ = draws([batch])
        tokens[name] += int(batch["attention_mask"].sum())
    total = sum(tokens.values())
    assert total == pytest.approx(20_000, rel=0.01)
    for name in given["datasets"]:
        assert tokens[name] / total == pytest.approx(1 / 3, abs=0.01)


@pytest.mark.parametrize("options", [rare({"batch_size": 4}), {"pack": 128}], ids=str)
def test_weights_change_where_a_block_begins(make, folders, options):
    given = {
        "datasets": plain("chats", "captions", folders=folders),
        "epoch": 120,
        "schedule": [{"from": 61, "weights": {"chats": 0}}],
    }
    given["datasets"]["captions"]["weight"] = 1
    loader = make(given, image=None, epochs=2, **options)
    found = draws(loader)
    # Within a block of packs, the order is another one.
    assert abs(Counter(name for name, _ in found[:61])["chats"] - 30.5) <= 2
    assert len(of("chats", found[61:])) <= 1
    assert len(found) == 240
    assert_resumes_exactly(
        lambda **more: make(given, image=None, epochs=2, **options, **more),
        world_sizes=(1,),
        stops=(0.3,),
    )


@pytest.mark.campaign
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@hypothesis.given(data=st.data())
def test_random_mixtures_resume_exactly(make, mixture, data):
    parts = data.draw(st.permutations(list(SIZES)))[: data.draw(st.integers(1, 4))]
    weight = st.sampled_from([0.001, 0.3, 1.0, 7.0])
    limit = st.sampled_from([None, 3, "40%"])
    options = {name: {"weight": data.draw(weight)} for name in parts}
    for one in options.values():
        if (most := data.draw(limit)) is not None:
            one["limit"] = most
    given = {
        "datasets": mixture(parts=parts, **options),
        "epoch": data.draw(st.sampled_from(["shortest", 1, 37, 110])),
    }
    if data.draw(st.booleans()):
        start, over = data.draw(st.integers(0, 60)), data.draw(st.integers(0, 60))
        change = {"from": start, "weights": {parts[0]: data.draw(weight)}}
        given["schedule"] = [change | ({"over": over} if over else {})]
    if given["epoch"] == "shortest" and any(one["weight"] < 0.3 for one in options.values()):
        given["epoch"] = 50
    kind = data.draw(st.sampled_from(["sample", "buckets", "budget", "pack"]))
    units = {
        "sample": {"batch_size": data.draw(st.integers(1, 9))},
        "buckets": {"batch_size": data.draw(st.integers(1, 9)), "buckets": 3},
        "budget": {"max_tokens": data.draw(st.integers(120, 600))},
        "pack": {"pack": data.draw(st.integers(120, 600))},
    }[kind]
    units["shuffle"] = data.draw(st.sampled_from([True, False, "shards"]))
    worlds = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=3, unique=True))
    assert_resumes_exactly(
        lambda **more: make(given, **units, **more),
        world_sizes=worlds,
        stops=(data.draw(st.floats(0, 1)),),
    )


def test_far_epochs_are_as_near_ones(make, mixture):
    """Passes of a small dataset are counted beyond those that fit beside a sample's number."""
    given = {"datasets": mixture(parts=("captions", "one"), one={"weight": 0.3}), "epoch": 40}
    image = ImageSpec(size=16, flip=0.5)
    for epoch in (0, 10**9):
        loader = make(given, image=image)
        loader.set_epoch(epoch)
        batches = list(loader)
        assert len(draws(batches)) == 40
        assert abs(len(of("one", draws(batches))) - 20) <= 2
        again = make(given, image=image, num_workers=2)
        again.set_epoch(epoch)
        assert_same_batches(again, batches)
