"""Mixtures of datasets: the order, and samples as in each dataset alone."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from PIL import Image

import datapipe
from datapipe import (
    CacheSpec,
    ImageSpec,
    IndexMismatch,
    Loader,
    PackSpec,
    PlanError,
    RunSpec,
    StateMismatch,
    StoreError,
)
from datapipe.testing import assert_resumes_exactly, assert_same_batches

from ..remote.server import serving

SIZES = {"chats": 29, "captions": 17, "drawings": 5, "one": 1}
META = ("dataset", "key", "valid", "sample", "num_items_in_batch")
SMALL = ImageSpec(size=16)
Draw = tuple[str, str]
Make = Callable[..., Loader]


def write_chats(root: Path, encode: Any, crop: Any) -> None:
    root.mkdir(parents=True)
    records = []
    for number in range(SIZES["chats"]):
        count = (1, 1, 2, 0)[number % 4]
        for image in range(count):
            content = encode(crop(size=(40 + 2 * number, 30 + image), left=number), quality=80)
            (root / f"{number}-{image}.jpg").write_bytes(content)
        names = [f"{number}-{image}.jpg" for image in range(count)]
        turns = [
            {"from": "human", "value": "<image>" * count + f"What is number {number}?"},
            {"from": "gpt", "value": "It is " + f"{number}, " * (1 + number % 9)},
        ]
        record: dict[str, Any] = {"id": f"id-{number}", "conversations": turns}
        records.append(record | ({"image": names} if names else {}))
    (root / "data.json").write_text(json.dumps(records))


def write_drawings(root: Path, encode: Any) -> None:
    root.mkdir(parents=True)
    for number in range(SIZES["drawings"]):
        image = Image.new("RGB", (24 + 8 * number, 40), (40 * number, 90, 200))
        (root / f"{number}.png").write_bytes(encode(image, "PNG"))
        (root / f"{number}.txt").write_text(f"a drawing, the {number + 1}. of five " * 3)


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory, make_folder: Any, encode: Any, crop: Any
) -> dict[str, Path]:
    """Chats with none to two images, captions, drawings in PNG, and a dataset of one sample."""
    root = tmp_path_factory.mktemp("mixture")
    raw = root / "raw"
    write_chats(raw / "chats", encode, crop)
    make_folder(raw / "captions", SIZES["captions"])
    write_drawings(raw / "drawings", encode)
    make_folder(raw / "one", 1)
    for name in SIZES:
        datapipe.pack_dataset(raw / name, root / name, shard_size=7)
    return {name: root / name for name in SIZES}


@pytest.fixture(scope="module")
def caption(tokenizer: Path) -> datapipe.TextSpec:
    return datapipe.TextSpec(tokenizer=tokenizer, template="caption", image_tokens=3)


@pytest.fixture(scope="module")
def chatml(tokenizer: Path) -> datapipe.TextSpec:
    return datapipe.TextSpec(tokenizer=tokenizer, template="chatml", image_tokens=4)


@pytest.fixture(scope="module")
def mixture(
    folders: dict[str, Path], caption: datapipe.TextSpec, chatml: datapipe.TextSpec
) -> Callable[..., dict[str, Any]]:
    """A mixture of all datasets, with texts and images of their own; `options` are of some."""

    def make(*, parts: Iterable[str] = SIZES, **options: dict[str, Any]) -> dict[str, Any]:
        whole: dict[str, dict[str, Any]] = {
            "chats": {"weight": 0.5, "text": chatml},
            "captions": {
                "weight": 0.3,
                "image": ImageSpec(size=16, random_crop=(0.3, 1.0), flip=0.5),
            },
            "drawings": {"weight": 0.15, "image": ImageSpec(size=16, flip=0.5)},
            "one": {"weight": 0.05},
        }
        return {
            name: whole[name] | {"path": folders[name]} | options.get(name, {}) for name in parts
        }

    return make


@pytest.fixture
def make(mixture: Any, caption: datapipe.TextSpec) -> Make:
    """Makes loaders of the mixture of all datasets."""

    def made(given: Any = None, **options: Any) -> Loader:
        if not options.keys() & {"pack", "max_tokens"}:
            options.setdefault("batch_size", 4)
        defaults = {"text": caption, "image": SMALL, "meta": META, "seed": 3, "num_workers": 0}
        if "text" in options:
            defaults["meta"] = META[:-1]
        return datapipe.make_loader(given or mixture(), **defaults | options)

    return made


def draws(batches: Iterable[Any]) -> list[Draw]:
    """The dataset and key of every valid sample of some batches."""
    return [
        (name, key)
        for batch in batches
        for name, key, valid in zip(
            batch["dataset"], batch["key"], batch["valid"].tolist(), strict=True
        )
        if valid
    ]


def content(batch: Any) -> dict[str, Any]:
    names = ("input_ids", "labels", "pixel_values")
    return {name: batch[name].tolist() for name in names if name in batch}


def pixels_of(batch: Any) -> bytes:
    """The images of a batch; a batch without any has no key for them."""
    return batch["pixel_values"].numpy().tobytes() if "pixel_values" in batch else b""


def of(name: str, found: Iterable[Draw]) -> list[str]:
    return [key for own, key in found if own == name]


def plain(*names: str, folders: dict[str, Path], **options: Any) -> dict[str, Any]:
    return {name: {"path": folders[name], "weight": 1.0} | options for name in names}


UNITS: list[Any] = [
    {"batch_size": 4},
    pytest.param({"batch_size": 3, "group": 6}, marks=pytest.mark.campaign),
    {"batch_size": 3, "buckets": 3},
    {"max_tokens": 150},
    {"pack": 128},
    pytest.param(
        {"pack": PackSpec(128, static_shapes=True, max_images=6), "batch_size": 2},
        marks=pytest.mark.campaign,
    ),
    {"pack": 128, "epochs": 2, "shuffle": "shards", "shards_mixed": 2},
]


@pytest.mark.parametrize("options", UNITS, ids=str)
def test_batches_are_the_same_whoever_makes_them(
    make: Make, options: dict[str, Any], tmp_path: Path
) -> None:
    expected = list(make(**options))
    assert {name for name, _ in draws(expected)} == set(SIZES)
    ways: dict[str, dict[str, Any]] = {
        "threads": {"num_workers": 2, "prefetch_factor": 3},
        "memory": {"cache": CacheSpec(memory="20MB"), "num_workers": 1},
        "little memory": {"cache": CacheSpec(memory=20_000, policy="next-use"), "num_workers": 2},
        "encoded": {"cache": CacheSpec(memory="20MB", keep="encoded")},
        "disk": {"cache": CacheSpec(disk=tmp_path / "disk", disk_size="20MB"), "num_workers": 2},
        "disk again": {"cache": CacheSpec(disk=tmp_path / "disk", disk_size="20MB")},
        "plan": {"cache": CacheSpec(plan=tmp_path / "plan")},
        "plan again": {"cache": CacheSpec(plan=tmp_path / "plan"), "num_workers": 2},
        "device": {"device": "cpu"},
        "not verified": {"verify": False},
    }
    for name, way in ways.items():
        loader = make(**options, **way)
        assert_same_batches(loader, expected, name)
        loader.close()


@pytest.mark.parametrize("options", [{"batch_size": 8}, {"pack": 128}], ids=str)
def test_worker_processes_make_the_same_batches(make: Make, options: dict[str, Any]) -> None:
    loader = make(**options, num_workers=1, workers="processes", epochs=2)
    assert_same_batches(loader, make(**options, epochs=2))
    loader.close()


@pytest.mark.parametrize("options", UNITS, ids=str)
def test_a_mixture_resumes_exactly(make: Make, options: dict[str, Any]) -> None:
    whole = options.get("epochs", 1) == 1
    assert_resumes_exactly(
        lambda **more: make(**options, **more),
        world_sizes=(1, 2, 3) if whole else (1,),
        stops=(0.3, 1.0),
    )


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 1, "group": 6}, {"pack": 96, "group": 6}, {"max_tokens": 120, "group": 6}],
    ids=str,
)
def test_the_order_is_the_same_on_any_number_of_ranks(make: Make, options: dict[str, Any]) -> None:
    def order(world: int) -> list[Draw]:
        ranks = [list(make(**options, rank=rank, world_size=world)) for rank in range(world)]
        assert len({len(rank) for rank in ranks}) == 1
        return [draw for step in zip(*ranks, strict=True) for draw in draws(step)]

    assert order(1) == order(2) == order(3)


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("units", [{"batch_size": 1}, {"pack": 96}], ids=str)
def test_a_run_is_stopped_and_resumed_again_and_again(
    make: Make, units: dict[str, Any], every: int
) -> None:
    """After every few steps other ranks go on; together they see what one rank sees, in order."""
    options = {**units, "group": 6, "epochs": 2}
    whole = draws(make(**options))
    found: list[Draw] = []
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


def test_random_numbers_and_orders_do_not_depend_on_other_datasets(
    make: Make, mixture: Any
) -> None:
    """Another dataset moves samples, and changes no pixel of theirs."""

    def pixels(parts: tuple[str, ...]) -> dict[str, list[tuple[str, bytes]]]:
        found: dict[str, list[tuple[str, bytes]]] = {name: [] for name in SIZES}
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


def test_random_numbers_differ_between_passes_and_samples(make: Make, mixture: Any) -> None:
    """A dataset that is passed several times in an epoch is cropped anew each time."""
    loader = make(mixture(parts=("chats", "drawings", "captions")), batch_size=1, epochs=3)
    seen: dict[Draw, list[bytes]] = {}
    for batch in loader:
        (draw,) = draws([batch])
        seen.setdefault(draw, []).append(pixels_of(batch))
    crops = [images for (name, _), images in seen.items() if name == "captions"]
    assert min(map(len, crops)) >= 3
    assert all(len(set(images)) == len(images) for images in crops)
    assert all(len(set(images)) == 1 for (name, _), images in seen.items() if name == "chats")


def test_neighbours_have_random_numbers_of_their_own(make: Make, mixture: Any) -> None:
    draws_of = make(mixture()).components().schedule.origin.draws  # type: ignore[attr-defined]
    numbers = np.arange(sum(SIZES.values()))
    identities = draws_of.identities(numbers)
    assert len(np.unique(identities)) == len(numbers)
    assert identities.min() >= 0


def test_samples_are_those_of_their_own_loaders(
    make: Make, mixture: Any, folders: dict[str, Path], tokenizer: Path
) -> None:
    """Tokens, labels and pixels are those that each dataset's own loader makes."""
    short = datapipe.TextSpec(
        tokenizer=tokenizer,
        template="chatml",
        image_tokens=4,
        max_length=24,
        overlong="truncate",
    )
    specs = {
        "chats": (short, ImageSpec(size=16, resize="pad")),
        "captions": (None, ImageSpec(size=16, resize="crop")),
        "drawings": (None, None),
    }
    own = {
        name: {key: value for key, value in zip(("text", "image"), spec, strict=True) if value}
        for name, spec in specs.items()
    }
    expected: dict[Draw, dict[str, list[Any]]] = {}
    for name, options in own.items():
        for batch in make(str(folders[name]), **{"batch_size": 1, **options}):
            expected[name, batch["key"][0]] = content(batch)
    given = mixture(
        parts=specs, **{name: {"image": SMALL, **options} for name, options in own.items()}
    )
    checked = set()
    for batch in make(given, batch_size=1):
        (draw,) = draws([batch])
        assert content(batch) == expected[draw]
        checked.add(draw)
    assert len(checked) == sum(SIZES[name] for name in specs)
    for batch in make(given, batch_size=7, num_workers=2, meta=(*META, "images_per_sample")):
        row = image = 0
        counts = batch["images_per_sample"].tolist()
        for draw, count in zip(draws([batch]), counts, strict=False):
            alone = expected[draw]
            length = len(alone["input_ids"][0])
            assert batch["input_ids"][row, :length].tolist() == alone["input_ids"][0]
            assert batch["labels"][row, :length].tolist() == alone["labels"][0]
            pixels = batch["pixel_values"][image : image + count].tolist() if count else []
            assert pixels == alone.get("pixel_values", [])
            row, image = row + 1, image + count
    for batch in make(given, pack=200, meta=(*META, "images_per_sample")):
        parts = datapipe.unpack(
            {"input_ids": batch["input_ids"], "labels": batch["labels"]},
            batch["cu_seq_lens_q"],
            samples=len(batch["key"]),
        )
        image = 0
        counts = batch["images_per_sample"].tolist()
        for draw, part, count in zip(draws([batch]), parts, counts, strict=True):
            alone = expected[draw]
            assert part["input_ids"].tolist() == alone["input_ids"][0]
            # Of a pack, the first token of a sample is predicted from none.
            assert part["labels"].tolist()[1:] == alone["labels"][0][1:]
            pixels = batch["pixel_values"][image : image + count].tolist() if count else []
            assert pixels == alone.get("pixel_values", [])
            image += count


def test_tiles_of_two_datasets_are_those_of_each(make: Make, mixture: Any) -> None:
    specs = {
        "captions": ImageSpec(resize="tiles", size=16, tiles=4),
        "drawings": ImageSpec(resize="tiles", size=16, tiles=2, thumbnail=False),
    }
    given = mixture(parts=specs, **{name: {"image": spec} for name, spec in specs.items()})
    images = {}
    for name, spec in specs.items():
        alone = mixture(parts=(name,), **{name: {"image": spec}})
        for batch in make(alone, batch_size=1, text=None, meta=("dataset", "key", "valid")):
            images[draws([batch])[0]] = batch["pixel_values"]
    for batch in make(given, batch_size=5, text=None, meta=("dataset", "key", "valid")):
        rows = torch.cat([images[draw] for draw in draws([batch])])
        assert torch.equal(batch["pixel_values"][: len(rows)], rows)


def test_a_dataset_goes_on_from_pass_to_pass_over_the_whole_run(make: Make) -> None:
    """No sample comes twice before all of its pass have come, over all epochs."""
    for options in ({"batch_size": 4}, {"batch_size": 5, "epochs": None}):
        if options.get("epochs", 3) is None:
            options["run"] = RunSpec(max_steps=70)
        found = draws(make(**{"epochs": 3, "drop_last": False, **options}))
        for name, size in SIZES.items():
            own = of(name, found)
            assert len(own) > size
            for start in range(0, len(own) - size + 1, size):
                assert len(set(own[start : start + size])) == size
            passes = [own[start : start + size] for start in range(0, len(own) - size + 1, size)]
            if size > 4:
                assert len({tuple(one) for one in passes}) == len(passes)


def test_packs_hold_each_sample_as_often_as_plain_batches(make: Make) -> None:
    expected = Counter(draws(make(epochs=2)))
    for options in ({"pack": 128}, {"max_tokens": 200}, {"batch_size": 3, "buckets": 4}):
        assert Counter(draws(make(epochs=2, **options))) == expected


def test_shares_are_those_that_were_asked_for(make: Make) -> None:
    found = Counter(name for name, _ in draws(make(epochs=10, image=None)))
    total = sum(found.values())
    for name, share in {"chats": 0.5, "captions": 0.3, "drawings": 0.15, "one": 0.05}.items():
        assert abs(found[name] - share * total) <= 2


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("options", [{"batch_size": 1}, {"pack": 64}], ids=str)
def test_every_rank_sees_every_dataset(
    make: Make, folders: dict[str, Path], world: int, options: dict[str, Any]
) -> None:
    given = plain("chats", "captions", folders=folders)
    for rank in range(world):
        loader = make(given, rank=rank, world_size=world, epochs=4, image=None, **options)
        share = Counter(name for name, _ in draws(loader))
        total = sum(share.values())
        assert 0.3 < share["chats"] / total < 0.7


@pytest.mark.parametrize("shuffle", [False, "shards"])
def test_other_orders_are_those_of_each_dataset(
    make: Make, folders: dict[str, Path], shuffle: Any
) -> None:
    given = plain("chats", "captions", folders=folders)
    options = {"image": None, "text": None, "shuffle": shuffle, "shards_mixed": 1, "epochs": 2}
    found = draws(make(given, **options))
    for name in given:
        own = [int(key) for key in of(name, found)]
        size = SIZES[name]
        for start in range(0, len(own) - size + 1, size):
            one = own[start : start + size]
            assert sorted(one) == list(range(size))
            if shuffle is False:
                assert one == list(range(size))
            else:
                shards = [number // 7 for number in one]
                assert len(list(itertools.groupby(shards))) == len(set(shards))


def test_samples_are_excluded_by_dataset_and_key(make: Make, mixture: Any) -> None:
    whole = draws(make(epochs=2, image=None))
    key = "000000003"
    for exclude in ("chats:" + key, "drawings:" + key):
        name = exclude.split(":")[0]
        left = draws(make(epochs=2, image=None, exclude=exclude))
        assert left == [draw for draw in whole if draw != (name, key)]
        assert len(left) < len(whole)
    several = [f"{name}:{key}" for name in ("chats", "captions", "drawings")]
    left = draws(make(epochs=2, image=None, exclude=several))
    assert left == [draw for draw in whole if draw[1] != key]
    only = "000000020"  # a key that one dataset has
    left = draws(make(epochs=2, image=None, exclude=[only, several[0]]))
    assert left == [draw for draw in whole if draw not in {("chats", only), ("chats", key)}]


@pytest.mark.parametrize(
    ("exclude", "told"),
    [
        ("000000003", r"in several datasets: 'chats', 'captions', 'drawings'; .*'chats:000000003'"),
        (["one:000000000", "000000000"], r"'captions', 'drawings' and 1 more"),
        ("one:000000003", "no sample of dataset 'one' has this key"),
        ("none:000000003", "no sample of any dataset has this key"),
        ("x", "no sample of any dataset has this key"),
        (52, "the dataset has samples 0 to 51"),
    ],
)
def test_a_key_that_may_be_of_several_datasets_is_refused(
    make: Make, exclude: Any, told: str
) -> None:
    with pytest.raises(PlanError, match=told):
        make(exclude=exclude)


def test_numbers_and_steps_are_excluded(make: Make) -> None:
    loader = make()
    whole = [draws([batch]) for batch in loader]
    numbers = {
        draw: number
        for batch in make()
        for draw, number in zip(draws([batch]), batch["sample"].tolist(), strict=False)
    }
    assert sorted(set(numbers.values())) == list(range(52))
    number = numbers["drawings", "000000001"]
    left = draws(make(exclude=[number]))
    assert left == [draw for step in whole for draw in step if numbers[draw] != number]
    view = loader.plan.step(2, epoch=0)
    assert sorted(zip(view.ranks[0].datasets, view.ranks[0].keys, strict=True)) == sorted(whole[2])
    left = draws(make(exclude=[view]))
    assert left == [draw for n, step in enumerate(whole) if n != 2 for draw in step]
    with pytest.raises(PlanError, match="seen in another plan"):
        make(exclude=[view], seed=4)


def test_conditions_of_the_loader_and_of_datasets_hold_together(make: Make, mixture: Any) -> None:
    given = mixture(chats={"where": "images > 0"}, captions={"where": "width > 42"})
    found = set(draws(make(given, where="images < 2", epochs=2)))
    alone = {
        name: set(draws(make(mixture(parts=(name,)), where=condition, image=None)))
        for name, condition in {
            "chats": "images > 0 and images < 2",
            "captions": "width > 42 and images < 2",
            "drawings": "images < 2",
            "one": "images < 2",
        }.items()
    }
    assert found == set().union(*alone.values())
    assert len(alone["chats"]) == 15
    either = mixture(parts=("chats",), chats={"where": "images == 0 or images == 2"})
    assert {int(key) % 4 for _, key in draws(make(either, where="images > 0"))} == {2}
    with pytest.raises(PlanError, match="chats"):
        make(mixture(chats={"where": "images > 9"}))
    with pytest.raises(PlanError, match=r"dataset 'drawings' of the mixture: .*colour"):
        make(mixture(drawings={"where": "colour > 9"}))


@pytest.mark.parametrize(("limit", "count"), [(10, 10), ("50%", 14), ("5%", 1), (10**6, 29)])
def test_a_limit_keeps_the_same_samples_in_every_epoch(
    make: Make, mixture: Any, limit: Any, count: int
) -> None:
    given = mixture(parts=("chats", "captions"), chats={"limit": limit})
    options: dict[str, Any] = {"image": None, "epochs": 1}
    every = set(of("chats", draws(make(mixture(parts=("chats", "captions")), **options))))
    kept = set(of("chats", draws(make(given, **options))))
    assert len(kept) == count
    for other in ({"epochs": 4}, {"seed": 9, "epochs": 3}, {"pack": 100, "epochs": 2}):
        assert set(of("chats", draws(make(given, **options | other)))) == kept
    if count == 10:
        assert kept != set(sorted(every)[:count])  # of the whole dataset, and not its begin
        # More samples with a larger limit, and not others.
        more = mixture(parts=("chats", "captions"), chats={"limit": 14})
        assert kept < set(of("chats", draws(make(more, **options))))


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"pack": 128}], ids=str)
def test_weights_change_where_a_block_begins(
    make: Make, folders: dict[str, Path], options: dict[str, Any]
) -> None:
    given = {
        "datasets": plain("chats", "captions", folders=folders),
        "epoch": 120,
        "schedule": [{"from": 61, "weights": {"chats": 0}}],
    }
    given["datasets"]["captions"]["weight"] = 1
    loader = make(given, image=None, epochs=2, **options)
    blocks = loader.components().schedule.blocks(0)  # type: ignore[attr-defined]
    assert blocks.plan.edges.tolist() == [0, 61, 120]
    found = draws(loader)
    # Within a block of packs, the order is another one.
    assert abs(Counter(name for name, _ in found[:61])["chats"] - 30.5) <= 2
    assert len(of("chats", found[61:])) <= 1
    assert len(found) == 240
    assert_resumes_exactly(
        lambda **more: make(given, image=None, epochs=2, **options, **more), world_sizes=(1,)
    )


def test_validation_of_a_mixture_is_a_mixture(make: Make, mixture: Any) -> None:
    given = datapipe.Mixture.of(
        {
            "datasets": mixture(parts=("chats", "captions")),
            "validation": {"datasets": mixture(parts=("drawings",), drawings={"weight": 1})},
        }
    )
    assert given.validation is not None
    loader = make(given.validation, shuffle=False)
    assert of("drawings", draws(loader)) == [f"{n:09d}" for n in range(5)]


@pytest.fixture
def damaged(folders: dict[str, Path], tmp_path: Path) -> Path:
    """Captions whose sixth image is overwritten."""
    folder = tmp_path / "captions"
    shutil.copytree(folders["captions"], folder)
    dataset = datapipe.index.dataset.open_dataset(folder)
    member = next(m for m in dataset.columns.members(5) if m.ext == "jpg")
    with (folder / dataset.manifest.shards[0].name).open("r+b") as file:
        file.seek(member.offset + member.size // 2)
        file.write(b"\0" * (member.size - member.size // 2))
    return folder


@pytest.mark.parametrize(
    "options", [{"batch_size": 4}, {"pack": 128}, {"pack": 128, "num_workers": 2}], ids=str
)
def test_damaged_images_are_skipped(
    make: Make, mixture: Any, damaged: Path, options: dict[str, Any]
) -> None:
    given = mixture(captions={"path": damaged})
    loader = make(given, on_error="skip", **options)
    found = draws(loader)
    whole = draws(make(**options))
    assert found == [draw for draw in whole if draw != ("captions", "000000005")]
    assert len(found) < len(whole)
    assert loader.skipped >= 1
    with pytest.raises(datapipe.SampleError, match=r"000000005.jpg of captions/shard-000000.tar"):
        list(make(given, **options))


def test_a_dataset_that_is_packed_again_is_noticed(
    make: Make, mixture: Any, folders: dict[str, Path], make_folder: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "captions"
    shutil.copytree(folders["captions"], folder)
    given = mixture(captions={"path": folder})
    expected = list(make(given))
    state = make(given).state_dict()
    shutil.rmtree(folder)
    datapipe.pack_dataset(make_folder(tmp_path / "raw", 9), folder, shard_size=7)
    again = make(given)
    assert len(set(of("captions", draws(again)))) == 9
    shutil.rmtree(folder)
    shutil.copytree(folders["captions"], folder)
    assert_same_batches(make(given), expected)
    make(given).load_state_dict(state)
    shutil.rmtree(folder)
    with pytest.raises(IndexMismatch, match=str(folder)):
        make(given)


def test_a_dataset_that_changes_after_it_was_opened_is_refused(
    make: Make, mixture: Any, folders: dict[str, Path], make_folder: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "captions"
    shutil.copytree(folders["captions"], folder)
    loader = make(mixture(captions={"path": folder}))
    shutil.rmtree(folder)
    with pytest.raises((IndexMismatch, StoreError), match=str(folder)):
        list(loader)
    copied = pickle.dumps(loader.components().context.dataset)
    datapipe.pack_dataset(make_folder(tmp_path / "raw", 9), folder, shard_size=7)
    with pytest.raises(IndexMismatch, match="'captions' of a mixture; call make_loader again"):
        pickle.loads(copied).columns.keys(np.arange(52))


def notes_in(folder: Path) -> list[Path]:
    return sorted((folder / "datapipe" / "mixtures").glob("*.json"))


def test_notes_of_a_mixture_are_only_a_help(
    make: Make, mixture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    expected = draws(make(image=None))
    (note,) = notes_in(tmp_path)
    good = note.read_bytes()
    document = json.loads(good)
    notes = document["notes"]
    assert len(notes) == 2 * len(SIZES)
    document["notes"] = dict.fromkeys(notes, 5)
    for content in (b"", b"{", b"[]", b"null", b'"x"', json.dumps(document).encode(), good[:-40]):
        note.write_bytes(content)
        assert draws(make(image=None)) == expected
        assert json.loads(note.read_bytes())["notes"] == notes
    note.unlink()
    note.mkdir()
    assert draws(make(image=None)) == expected
    note.rmdir()
    shutil.rmtree(note.parent)
    note.parent.write_text("a file where the folder should be")
    assert draws(make(image=None)) == expected


def test_notes_are_found_for_other_options_of_the_same_datasets(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = draws(make(image=None, where="images > 0"))
    second = draws(make(image=None))
    assert first != second
    assert draws(make(image=None, where="images > 0")) == first
    assert draws(make(image=None)) == second
    assert len(notes_in(tmp_path)) == 1


def test_tars_of_others_are_a_dataset_of_a_mixture(
    make: Make, mixture: Any, folders: dict[str, Path], make_tar: Any, jpeg: Any, tmp_path: Path
) -> None:
    for shard in range(2):
        members = []
        for number in range(4):
            key = f"theirs-{4 * shard + number}"
            members += [(f"{key}.jpg", jpeg(number)), (f"{key}.txt", f"number {number}".encode())]
        make_tar(tmp_path / "tars" / f"{shard}.tar", members)
    for path in (tmp_path / "tars", str(tmp_path / "tars" / "{0..1}.tar")):
        given = mixture() | {"theirs": {"path": path, "weight": 0.3}}
        found = draws(make(given))
        assert set(of("theirs", found)) == {f"theirs-{number}" for number in range(8)}
        left = draws(make(given, exclude=["theirs-3", "chats:000000001"]))
        assert left == [d for d in found if d not in {("theirs", "theirs-3"), LEFT_OUT}]


LEFT_OUT = ("chats", "000000001")


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2}], ids=str)
def test_datasets_here_and_elsewhere_make_one_mixture(
    make: Make, mixture: Any, folders: dict[str, Path], options: dict[str, Any]
) -> None:
    pytest.importorskip("aiohttp")
    expected = list(make(pack=128, epochs=2))
    with serving(folders["captions"]) as one, serving(folders["one"]) as other:
        given = mixture(captions={"path": one.url}, one={"path": other.url})
        loader = make(given, pack=128, epochs=2, **options)
        assert_same_batches(loader, expected)
        loader.close()
        cached = make(given, pack=128, epochs=2, cache=CacheSpec(memory=30_000), **options)
        assert_same_batches(cached, expected)
        cached.close()
        state = loader.state_dict()
    make(pack=128, epochs=2).load_state_dict(state)  # content counts, and not where it is


def test_a_folder_under_two_names_is_two_datasets(make: Make, folders: dict[str, Path]) -> None:
    folder = folders["captions"]
    given = {name: {"path": folder, "weight": 1} for name in ("first", "second")}
    batches = list(make(given, image=None))
    found = draws(batches)
    first, second = of("first", found), of("second", found)
    assert sorted(set(first)) == sorted(set(second)) == [f"{n:09d}" for n in range(17)]
    assert first[:17] != second[:17]
    assert {n for batch in batches for n in batch["sample"].tolist()} == set(range(34))
    left = draws(make(given, image=None, exclude="second:000000004"))
    assert left == [draw for draw in found if draw != ("second", "000000004")]


def test_a_mixture_of_one_sample_repeats_it(make: Make, mixture: Any) -> None:
    given = {"datasets": mixture(parts=("one",)), "epoch": 10}
    assert draws(make(given, batch_size=4)) == [("one", "000000000")] * 10


def turned(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    if generator.random() < 0.5:
        return sample | {"images": [np.ascontiguousarray(i[::-1]) for i in sample["images"]]}
    return sample


def test_a_transform_draws_the_same_whoever_calls_it(make: Make) -> None:
    expected = list(make(transform=turned, epochs=2))
    assert_same_batches(make(transform=turned, epochs=2, num_workers=2), expected)
    loader = make(transform=turned, epochs=2, num_workers=1, workers="processes")
    assert_same_batches(loader, expected)
    loader.close()


def test_dali_makes_the_images_of_a_mixture(make: Make, mixture: Any) -> None:
    pytest.importorskip("nvidia.dali")
    parts = ("captions", "drawings")
    same = {name: {"image": SMALL} for name in parts}
    given = mixture(parts=parts, **same)
    expected = list(make(given, decoder="dali"))
    assert_same_batches(make(given, decoder="dali", num_workers=2), expected)
    for batch, other in zip(expected, make(given, decoder="cpu"), strict=True):
        assert draws([batch]) == draws([other])
        difference = (batch["pixel_values"].float() - other["pixel_values"].float()).abs()
        assert difference.mean() < 3
    with pytest.raises(PlanError, match="DALI"):
        make(mixture(parts=parts), decoder="dali")


def test_a_state_of_other_datasets_is_refused(make: Make, folders: dict[str, Path]) -> None:
    state = make().state_dict()
    with pytest.raises(StateMismatch):
        make(str(folders["chats"])).load_state_dict(state)
    with pytest.raises(StateMismatch):
        make().load_state_dict(make(str(folders["chats"])).state_dict())


def test_another_program_gets_the_same_order(make: Make, tmp_path: Path) -> None:
    """Neither hashes of strings nor the order of anything unordered play a part."""
    loader = make(pack=128)
    assert loader.state_dict() == make(pack=128).state_dict()
    view = loader.plan.step(0)
    assert view.to_dict() == json.loads(json.dumps(make(pack=128).plan.step(0).to_dict()))


@pytest.fixture
def many(tmp_path: Path, make_folder: Any) -> dict[str, Any]:
    raw = make_folder(tmp_path / "raw", 3)
    first = tmp_path / "0"
    datapipe.pack_dataset(raw, first)
    for number in range(1, 40):
        shutil.copytree(first, tmp_path / str(number))
    return {f"d{n}": {"path": tmp_path / str(n), "weight": 1 + n % 3} for n in range(40)}


def test_many_small_datasets_are_one_mixture(make: Make, many: dict[str, Any]) -> None:
    found = draws(make(many, batch_size=16, image=None, epochs=2))
    counts = Counter(name for name, _ in found)
    total = sum(1 + n % 3 for n in range(40))
    for number in range(40):
        assert abs(counts[f"d{number}"] - len(found) * (1 + number % 3) / total) <= 2
    assert {name for name, _ in found} == set(many)


@pytest.mark.parametrize(
    "options",
    [
        {"pack": 128},
        {"pack": PackSpec(128, static_shapes=True)},
        {"max_tokens": 200},
        {"batch_size": 3, "buckets": 2, "meta": META},
        {"batch_size": 3, "run": RunSpec(train_tokens=200)},
    ],
    ids=str,
)
def test_texts_of_the_datasets_are_enough(
    make: Make, mixture: Any, caption: datapipe.TextSpec, options: dict[str, Any]
) -> None:
    expected = list(make(**options))
    given = mixture(**{name: {"text": caption} for name in SIZES if name != "chats"})
    assert_same_batches(make(given, **{"meta": META, **options, "text": None}), expected)
    whole = {"datasets": mixture(), "text": caption}
    assert_same_batches(make(whole, **{"meta": META, **options, "text": None}), expected)


def test_a_dataset_without_text_beside_others_with_one_is_refused(make: Make, mixture: Any) -> None:
    with pytest.raises(PlanError, match="dataset 'captions' of the mixture has no text"):
        make(text=None)
    mixed = mixture(parts=("captions", "drawings"))
    assert "input_ids" not in next(iter(make(mixed, text=None)))


def test_a_file_of_a_mixture_is_a_mixture(
    make: Make, folders: dict[str, Path], tmp_path: Path
) -> None:
    names = ("captions", "drawings")
    lines = [f"  {name}: {{path: {os.path.relpath(folders[name], tmp_path)}}}" for name in names]
    (tmp_path / "mixture.yaml").write_text("\n".join(["datasets:", *lines]))
    given = {name: {"path": folders[name]} for name in names}
    assert_same_batches(make(tmp_path / "mixture.yaml"), make(given))


def test_a_context_goes_to_other_processes_without_what_is_open(make: Make) -> None:
    loader = make(pack=128)
    expected = list(loader)
    context = pickle.loads(pickle.dumps(loader.components().context))
    assert all(part._dataset is None for part in context.dataset.parts)
    numbers = np.arange(52)
    assert context.dataset.columns.keys(numbers) == [
        key for name in SIZES for key in (f"{n:09d}" for n in range(SIZES[name]))
    ]
    assert len(expected) > 3


def test_images_of_one_kind_are_kept_on_the_device(make: Make, folders: dict[str, Path]) -> None:
    given = plain("chats", "drawings", folders=folders)
    image = ImageSpec(size=16, flip=0.5)
    expected = list(make(given, image=image, device="cpu", epochs=2))
    loader = make(given, image=image, device="cpu", epochs=2, cache=CacheSpec(device="20MB"))
    assert_same_batches(loader, expected)
    loader.close()
    with pytest.raises(PlanError, match="of one ImageSpec"):
        make(device="cpu", cache=CacheSpec(device="20MB"))


def test_tokens_are_the_shares_where_weights_are_by_tokens(
    make: Make, folders: dict[str, Path]
) -> None:
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


@pytest.mark.campaign
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@hypothesis.given(data=st.data())
def test_random_mixtures_resume_exactly(make: Make, mixture: Any, data: st.DataObject) -> None:
    parts = data.draw(st.permutations(list(SIZES)))[: data.draw(st.integers(1, 4))]
    weight = st.sampled_from([0.001, 0.3, 1.0, 7.0])
    limit = st.sampled_from([None, 3, "40%"])
    options = {name: {"weight": data.draw(weight), "limit": data.draw(limit)} for name in parts}
    for one in options.values():
        if one["limit"] is None:
            del one["limit"]
    given: dict[str, Any] = {
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
    units: dict[str, Any] = {
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


def test_far_epochs_are_as_near_ones(make: Make, mixture: Any) -> None:
    """Passes of a small dataset are counted beyond those that fit beside a sample's number."""
    given = {"datasets": mixture(parts=("captions", "one"), one={"weight": 0.3}), "epoch": 40}
    image = ImageSpec(size=16, flip=0.5)
    for epoch in (0, 10**6, 10**9):
        loader = make(given, image=image)
        loader.set_epoch(epoch)
        batches = list(loader)
        assert len(draws(batches)) == 40
        assert abs(len(of("one", draws(batches))) - 20) <= 2
        again = make(given, image=image, num_workers=2)
        again.set_epoch(epoch)
        assert_same_batches(again, batches)
