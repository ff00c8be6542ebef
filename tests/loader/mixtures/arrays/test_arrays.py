"""Mixtures of arrays give the batches that mixtures of their shards give, bit for bit."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import datapipe
from datapipe import CacheSpec, ImageSpec, IndexMismatch, PlanError, convert_dataset
from datapipe.index.dataset import open_dataset
from datapipe.testing import assert_same_batches

from ....campaigns import rare
from ....remote.server import serving

SPEC = ImageSpec(size=24)
CLIP = ImageSpec(size=24, normalize="clip")
FLIP = ImageSpec(size=24, normalize="imagenet", flip=0.5)
WEIGHTS = {"a": 0.5, "b": 0.2, "c": 0.3}
META = ("key", "valid", "dataset", "sample")


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "inline": {"num_workers": 0, "shuffle": False},
    "flip": {"image": FLIP},
    "bfloat16": {"image": ImageSpec(size=24, normalize="clip", dtype=torch.bfloat16)},
    "geometry": {"image": FLIP, "meta": (*META, "image_geometry", "source", "id", "text")},
    "without images": {"image": None},
    "where": {"where": "width > 180 or images == 0"},
    "ranks": {"rank": 1, "world_size": 2},
    "processes": {"workers": "processes", "image": FLIP},
    "device": {"device": "cpu", "image": CLIP},
    "unverified": {"verify": False, "batch_size": 31},
}


@pytest.mark.parametrize("letters", ["ABT", rare("AbT"), rare("aBc"), rare("AB")])
@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_the_shards(mix, case, letters):
    assert_same_batches(
        mix(letters, **CASES[case]), mix(letters.lower().replace("t", "c"), **CASES[case])
    )


@pytest.mark.parametrize(
    "options",
    [
        {"pack": 200},
        {"pack": 60, "overlong": "truncate"},
        rare({"batch_size": 4}),
        {"max_tokens": 150, "buckets": 3},
        {"pack": 200, "workers": "processes", "image": FLIP},
        rare({"pack": 200, "meta": (*META, "text", "id")}),
        {"pack": 200, "template": "llava"},
    ],
    ids=str,
)
@pytest.mark.parametrize("letters", [rare("ABT"), "AbT"])
def test_tokens_are_those_of_the_shards(mix, text, options, letters):
    own = {name: options[name] for name in ("overlong", "template") if name in options}
    rest = {name: value for name, value in options.items() if name not in own}
    arrays = mix(letters, text=text(**own), **rest)
    assert_same_batches(arrays, mix("abc", text=text(**own), **rest))


def test_images_on_the_device_are_those_of_the_shards(mix):
    for budget in ("1MB", "20KB"):
        options = {"device": "cpu", "cache": CacheSpec(device=budget), "image": FLIP, "epochs": 3}
        arrays = mix("AbT", **options)
        assert_same_batches(arrays, mix("abc", **options))
        assert arrays.stats()["device"].hits > 0


def test_images_have_the_form_of_the_arrays_unless_another_is_given(folders):
    common: dict[str, Any] = {"batch_size": 8, "num_workers": 0}
    weights = {str(folders["a"]): 0.5, str(folders["B"]): 0.5}
    batch = next(iter(datapipe.make_loader(weights, **common)))
    assert batch["pixel_values"].shape[1:] == (3, 24, 24)
    assert batch["pixel_values"].dtype == torch.uint8
    given = datapipe.make_loader(weights, image=SPEC, **common)
    assert_same_batches(datapipe.make_loader(weights, **common), given)
    texts = datapipe.make_loader({str(folders["T"]): 1}, **common)
    assert "pixel_values" not in next(iter(texts))


def test_datasets_may_normalise_their_images_differently(mix, kernel):
    given = {"b": {"image": {"size": 24, "normalize": "siglip", "flip": 0.5}}}
    arrays = mix("AB", given, image=CLIP)
    assert_same_batches(arrays, mix("ab", given, image=CLIP))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"image": ImageSpec(size=32)},
            r"dataset 'b' of the mixture: the arrays hold other images",
        ),
        ({"image": ImageSpec(resize="dynamic")}, "dataset 'b' of the mixture: .*many sizes"),
        ({"transform": print}, "dataset 'b' of the mixture: .*before they are fitted"),
        ({"decoder": "dali"}, "dataset 'b' of the mixture: .*decoded already"),
        ({"cache": CacheSpec(memory="1MB")}, "dataset 'b' of the mixture: .*arrays are decoded"),
    ],
    ids=str,
)
def test_what_cannot_be_had_is_refused(mix, options, message):
    with pytest.raises(PlanError, match=message):
        mix("aB", **options)


def test_arrays_of_two_forms_are_refused(folders, tmp_path):
    for name, spec in {
        "pad": ImageSpec(size=24, resize="pad"),
        "large": ImageSpec(size=28),
    }.items():
        convert_dataset(folders["b"], tmp_path / name, image=spec)
    for name, what in {
        "pad": "resize: 'stretch' of a, 'pad' of pad",
        "large": r"size: \[24, 24\] of a, \[28, 28\] of large",
    }.items():
        entries = {"a": {"path": folders["A"]}, name: {"path": tmp_path / name}}
        with pytest.raises(PlanError, match=f"the arrays of a and {name} hold images of .*{what}"):
            datapipe.make_loader(entries, batch_size=4)
        datapipe.make_loader(entries, batch_size=4, image=None)


def test_arrays_without_the_images_of_their_samples_are_refused(folders, tmp_path):
    convert_dataset(folders["b"], tmp_path / "b", image=None)
    entries = {"a": {"path": folders["A"]}, "b": {"path": tmp_path / "b"}}
    with pytest.raises(PlanError, match="dataset 'b' of the mixture: the arrays hold no images"):
        datapipe.make_loader(entries, batch_size=4)
    assert len(list(datapipe.make_loader(entries, batch_size=4, image=None))) > 0


def test_shards_that_lie_elsewhere_are_read_beside_arrays(mix, folders, tmp_path, monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    images = os.open(folders["A"] / "images.npy", os.O_RDONLY)
    os.fsync(images)
    os.posix_fadvise(images, 0, 0, os.POSIX_FADV_DONTNEED)  # not in the page cache
    os.close(images)
    with serving(folders["b"]) as server:
        far = mix("AbT", {"b": {"path": server.url}}, epochs=1)
        assert_same_batches(far, mix("abc", epochs=1))


@pytest.mark.parametrize("name", ["images.npy", "texts.npy"])
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_damage_is_found_in_each(folders, tmp_path, caplog, name, workers):
    copies = {}
    for letter in "AB":
        copies[letter] = tmp_path / letter
        shutil.copytree(folders[letter], copies[letter])
        path = copies[letter] / name
        data = bytearray(path.read_bytes())
        data[-100 if name == "images.npy" else data.rindex(b"human")] ^= 1
        path.write_bytes(data)
    entries = {"a": {"path": copies["A"]}, "b": {"path": copies["B"]}, "c": {"path": folders["c"]}}
    options: dict[str, Any] = {"batch_size": 16, "image": CLIP, "meta": META, "num_workers": 1}
    what = "image" if name == "images.npy" else "text"
    with pytest.raises(datapipe.DecodeError, match=rf"of [ab]/texts.npy: its {what} in {name}"):
        list(datapipe.make_loader(entries, workers=workers, **options))
    bad = {}
    for key, folder in zip("ab", copies.values(), strict=True):
        columns = open_dataset(folder).columns
        last = len(columns.sample_image) - 2
        if name == "images.npy":
            last = int(columns.sample_image.searchsorted(columns.sample_image[-1])) - 1
        bad[key] = columns.key(last)
    skipping = datapipe.make_loader(entries, workers=workers, on_error="skip", **options)
    failed = {batch["key"][i] for batch in skipping for i in np.flatnonzero(~batch["valid"])}
    assert failed >= set(bad.values())
    words = [record.getMessage().split() for record in caplog.records if "skipped" in record.msg]
    left_out = {(line[4], line[2]) for line in words}  # skipped sample KEY of SHARD: ...
    assert left_out == {(f"{dataset}/texts.npy:", key) for dataset, key in bad.items()}


def test_arrays_that_were_replaced_are_noticed(folders, tmp_path):
    place = tmp_path / "arrays"
    shutil.copytree(folders["A"], place)
    entries = {"a": {"path": place}, "b": {"path": folders["B"]}}
    loader = datapipe.make_loader(entries, batch_size=4, num_workers=0)
    shutil.rmtree(place)
    convert_dataset(folders["b"], place, image=SPEC)
    with pytest.raises(IndexMismatch, match="was packed or indexed again"):
        list(loader)
    again = datapipe.make_loader(entries, batch_size=4, num_workers=0, image=None)
    assert len(again.dataset) == 46


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux tells open files")
def test_files_of_arrays_do_not_stay_open(mix, text):
    loader = mix("ABT", text=text(), pack=200, num_workers=0)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    links = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(link))
        except FileNotFoundError:  # that of the folder itself
            continue
    assert not [link for link in links if link.endswith(".npy")]
