"""Runs that go on with another mixture: datasets keep their order, and nothing is lost."""

import json
import logging
import shutil
from collections import Counter
from itertools import chain, islice

import pytest

import datapipe
from datapipe.errors import PlanError, StateMismatch
from datapipe.index.files.sealed_json import sum_of

from .datasets import draws, of, plain

SIZES = {"a": 23, "b": 31, "c": 7}
WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}
OPTIONS = {"image": None, "meta": ("dataset", "key", "valid"), "seed": 3, "num_workers": 0}
STEPS = 9  # before the run is stopped


@pytest.fixture(scope="module")
def folders(tmp_path_factory, make_folder):
    root = tmp_path_factory.mktemp("mixture")
    for name, samples in SIZES.items():
        datapipe.pack_dataset(make_folder(root / "raw" / name, samples), root / name, shard_size=8)
    return {name: root / name for name in SIZES}


@pytest.fixture(params=["samples", "packs"])
def make(request, folders, tokenizer):
    """Makes loaders of a mixture, of samples or of packs."""
    text = datapipe.TextSpec(tokenizer=tokenizer, template="caption", image_tokens=2)
    units = {"batch_size": 5}
    if request.param == "packs":
        units = {"pack": 64, "text": text}

    def made(weights, **options):
        given = {
            name: one if isinstance(one, dict) else {"path": folders[name[0]], "weight": one}
            for name, one in weights.items()
        }
        return datapipe.make_loader(given, **{**OPTIONS, "epochs": 3, **units, **options})

    return made


@pytest.fixture
def scheduled(folders):
    """Makes loaders of three datasets of one weight, but for "a", in epochs of so many samples."""

    def made(epoch, *changes, weight=1, **options):
        mixture = {"datasets": plain(*"abc", folders=folders), "epoch": epoch}
        mixture["datasets"]["a"]["weight"] = weight
        if changes:
            mixture["schedule"] = changes
        return datapipe.make_loader(mixture, **{"batch_size": 5, **OPTIONS, **options})

    return made


def stopped(make, weights=WEIGHTS):
    """Return what was drawn before a run was stopped, and its state."""
    loader = make(weights)
    return draws(islice(loader, STEPS)), json.loads(json.dumps(loader.state_dict()))


def resumed(make, weights, state, **options):
    return at_state(make(weights, **options), state)


def at_state(loader, state):
    loader.load_state_dict(state)
    return loader


def assert_passes(found, name):
    """Every sample was drawn as often as every other one, or once more."""
    counts = Counter(of(name, found))
    assert len(counts) == min(SIZES[name[0]], len(of(name, found)))
    assert max(counts.values()) - min(counts.values()) <= 1, (name, counts)


def test_the_same_mixture_goes_on_without_a_word(make, folders, tmp_path, caplog):
    """Also if its datasets have moved meanwhile."""
    before, state = stopped(make)
    moved = {
        name: {"path": shutil.copytree(folders[name], tmp_path / name), "weight": weight}
        for name, weight in WEIGHTS.items()
    }
    whole = draws(make(WEIGHTS))
    for weights, more in ((WEIGHTS, {}), (WEIGHTS, {"num_workers": 2}), (moved, {})):
        assert before + draws(resumed(make, weights, state, **more)) == whole
    assert not caplog.records


@pytest.mark.parametrize(
    "weights",
    [{"a": 0.2, "b": 0.6, "c": 0.2}, {"a": 1, "b": 1, "c": 0}, {**WEIGHTS, "b2": 0.3}],
    ids=["weights", "weight of 0", "added"],
)
def test_other_weights_and_datasets_disturb_the_order_of_no_dataset(make, weights, caplog):
    before, state = stopped(make)
    loader = resumed(make, weights, state)
    length = len(loader)
    after = draws(loader)
    found = before + after
    for name in weights:
        assert_passes(found, name)
    assert "the mixture changes from step 9 on: " in caplog.text
    if loader.options.units_per_rank > 1:
        whole = draws(make(WEIGHTS))
        for name in WEIGHTS:
            assert all(x == y for x, y in zip(of(name, found), of(name, whole), strict=False))
    assert length >= STEPS
    assert length - STEPS == sum(1 for _ in resumed(make, weights, state))


def test_a_state_of_the_changed_run_resumes_exactly(make):
    _, state = stopped(make)
    other = {"a": 0.2, "b": 0.6, "c": 0.2, "b2": 0.1}
    whole = draws(resumed(make, other, state))
    for steps in (4, 19):
        loader = resumed(make, other, state)
        first = draws(islice(loader, steps))
        again = json.loads(json.dumps(loader.state_dict()))
        assert first + draws(resumed(make, other, again)) == whole


def test_an_epoch_ends_where_it_should_however_often_its_mixture_changes(scheduled):
    loader, found = scheduled(60), []
    for weight in (2, 3, 4):
        assert len(loader) == 12
        found += draws(islice(loader, 3))
        loader = at_state(scheduled(60, weight=weight), loader.state_dict())
    assert len(found + draws(loader)) == 60


def test_a_dataset_that_is_left_out_comes_back_at_its_place(make, caplog):
    first, state = stopped(make, {"a": 0.5, "b": 0.5})
    without = resumed(make, {"a": 0.5}, state)
    second = draws(islice(without, 2))
    with_both = resumed(make, {"a": 0.5, "b": 0.5}, without.state_dict())
    third = draws(with_both)
    assert "b is left out" in caplog.text
    assert "b is there again" in caplog.text
    assert not of("b", second)
    if with_both.options.units_per_rank > 1:
        assert_passes(first + second + third, "b")
        whole = of("b", draws(make({"a": 0.5, "b": 0.5})))
        assert of("b", first + third)[: len(whole)] == whole[: len(of("b", first + third))]
    else:
        assert "samples of the current block are left out" in caplog.text


def test_a_dataset_that_has_grown_goes_on_and_takes_more_in_the_next_pass(
    make, make_folder, tmp_path, caplog
):
    grown = tmp_path / "c"
    datapipe.pack_dataset(make_folder(tmp_path / "raw", 7), grown, shard_size=8)
    given = {"a": 0.5, "c": {"path": grown, "weight": 0.5}}
    loader = make(given)
    before = draws(islice(loader, STEPS))
    state = loader.state_dict()
    more = make_folder(tmp_path / "more", 9)
    datapipe.pack_dataset(more, grown, shard_size=8, append=True)
    with caplog.at_level(logging.WARNING):
        loader = at_state(make(given), state)
    found = of("c", before + draws(loader))
    assert "c has grown from 7 to 16 samples" in caplog.text
    passes = [found[at : at + 7] for at in range(0, len(of("c", before)) // 7 * 7, 7)]
    assert all(len(set(one)) == 7 for one in passes) or loader.options.units_per_rank == 1
    assert len(set(found)) == 16
    loader = at_state(make(given), state)
    assert loader.state_dict()["plan"]["mixture"]["legs"][-1]["datasets"]["c"]["samples"] == 16


def test_another_content_begins_anew(make, make_folder, tmp_path, caplog):
    _, state = stopped(make, {"a": 0.5, "c": 0.5})
    other = tmp_path / "c"
    datapipe.pack_dataset(make_folder(tmp_path / "raw", 12), other)
    given = {"a": 0.5, "c": {"path": other, "weight": 0.5}}
    loader = at_state(make(given), state)
    assert "c has other samples, and starts again" in caplog.text
    assert len(set(of("c", draws(loader)))) == 12


def test_a_schedule_that_changes_later_shares_the_past(scheduled):
    def made(start):
        return scheduled(200, {"from": start, "weights": {"a": 5}})

    early, late = draws(made(100)), draws(made(150))
    assert early[:100] == late[:100]
    assert early[100:150] != late[100:150]
    share = Counter(name for name, _ in early[100:])
    assert share["a"] == pytest.approx(100 * 5 / 7, abs=3)
    loader = made(100)
    first = draws(islice(loader, 20))
    assert first + draws(at_state(made(150), loader.state_dict())) == late


def test_amounts_in_steps_stay_those_of_the_first_launch(scheduled):
    def made(**options):
        return scheduled(120, {"from": "10 steps", "weights": {"a": 0}}, **options)

    whole = draws(made(batch_size=6))
    loader = made(batch_size=6)
    first = draws(islice(loader, 3))
    state = loader.state_dict()
    ranks = [
        draws(at_state(made(batch_size=2, world_size=3, rank=rank), state)) for rank in range(3)
    ]
    assert Counter([*first, *chain(*ranks)]) == Counter(whole)
    assert not of("a", whole[60:])


def test_an_epoch_of_another_mixture_cannot_be_looked_at(make):
    loader = make(WEIGHTS)
    draws(loader)
    other = resumed(make, {"a": 1, "b": 1}, loader.state_dict())
    with pytest.raises(PlanError, match="was drawn from another mixture"):
        other.plan.step(0, epoch=0)
    assert len(other) > 0


def test_other_options_of_the_plan_are_refused_as_ever(make):
    _, state = stopped(make)
    with pytest.raises(datapipe.StateMismatch, match="seed: 3 in the state, 4 here"):
        resumed(make, {"a": 1, "b": 1}, state, seed=4)
    state["plan"]["mixture"]["legs"][0]["start"] = "x"
    with pytest.raises(datapipe.StateMismatch, match="checksum"):
        resumed(make, WEIGHTS, state)


def test_a_state_says_where_each_dataset_is(make):
    loader = make(WEIGHTS)
    found = draws(islice(loader, STEPS))
    state = loader.state_dict()
    places = {name: (at["epoch"], at["position"]) for name, at in state["datasets"].items()}
    counts = Counter(name for name, _ in found)
    if loader.options.units_per_rank == 1:
        counts = Counter()  # a pack is in the middle of the first block
    assert places == {name: divmod(counts[name], size) for name, size in SIZES.items()}
    alone = datapipe.make_loader(loader.dataset.parts[0].dataset().folder, batch_size=1)
    assert "datasets" not in alone.state_dict()


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("legs", 0, "datasets", "b", "rates"), None, "'rates' is missing"),
        (("absent",), None, "'absent' is missing"),
        (("legs", 0, "datasets", "b", "start"), [0, 1], "not enough values"),
        (("legs", 0, "datasets", "b", "samples"), "many", "'str' object"),
    ],
    ids=str,
)
def test_a_state_whose_mixture_was_edited_is_refused_with_the_value(make, path, value, said):
    """Also if its checksum was computed again."""
    _, state = stopped(make)
    *folders, last = path
    inner = state["plan"]["mixture"]
    for name in folders:
        inner = inner[name]
    del inner[last]
    if value is not None:
        inner[last] = value
    rest = {name: one for name, one in state.items() if name != "crc32"}
    with pytest.raises(StateMismatch, match=f"the mixture in the state cannot be read: .*{said}"):
        make(WEIGHTS).load_state_dict({**rest, "crc32": sum_of(rest)})
