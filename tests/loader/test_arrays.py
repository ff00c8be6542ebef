"""Arrays give the batches that the shards they came from give, bit for bit."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import datapipe
from datapipe import CacheSpec, ImageSpec, IndexMismatch, Loader, PlanError, convert_dataset
from datapipe.index.dataset import open_dataset
from datapipe.store.arrays import open_images
from datapipe.testing import assert_resumes_exactly, assert_same_batches

from ..campaigns import rare
from ..remote.server import serving

SPECS = {
    "stretch": ImageSpec(size=24),
    "pad": ImageSpec(size=(20, 28), resize="pad", normalize="clip"),
    "crop": ImageSpec(size=24, resize="crop", interpolation="bicubic"),
}


@pytest.fixture(scope="module")
def converted(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The packed dataset as arrays of each form."""
    root = tmp_path_factory.mktemp("arrays")
    for name, spec in SPECS.items():
        convert_dataset(packed, root / name, image=spec, workers=2)
    return {name: root / name for name in SPECS}


@pytest.fixture
def pair(packed: Path, converted: dict[str, Path]) -> Callable[..., tuple[Loader, Loader]]:
    """Makes a loader of shards and one of arrays."""

    def make(form: str = "stretch", **options: Any) -> tuple[Loader, Loader]:
        if not options.keys() & {"pack", "max_tokens"}:
            options.setdefault("batch_size", 4)
        options.setdefault("num_workers", 2)
        options.setdefault("image", SPECS[form])
        shards = datapipe.make_loader(packed, **options)
        return shards, datapipe.make_loader(converted[form], **options)

    return make


CLIP = ImageSpec(size=24, normalize="clip")
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("stretch", {}),
    "inline": ("stretch", {"num_workers": 0, "shuffle": False}),
    "float32": ("stretch", {"image": CLIP}),
    "bfloat16": ("stretch", {"image": ImageSpec(size=24, normalize="clip", dtype=torch.bfloat16)}),
    "flip": ("stretch", {"image": ImageSpec(size=24, normalize="imagenet", flip=0.5)}),
    "flip uint8": ("crop", {"image": ImageSpec(
        size=24, resize="crop", interpolation="bicubic", flip=0.5)}),
    "pad": ("pad", {}),
    "crop": ("crop", {"epochs": 2}),
    "geometry": ("pad", {"meta": ("image_geometry", "source", "sample", "id")}),
    "geometry of a crop": ("crop", {"meta": ("image_geometry",)}),
    "geometry stretched": ("stretch", {"meta": ("image_geometry",), "image": CLIP}),
    "geometry mirrored": ("crop", {"meta": ("image_geometry",), "image": ImageSpec(
        size=24, resize="crop", interpolation="bicubic", flip=0.5)}),
    "without images": ("stretch", {"image": None}),
    "where": ("stretch", {"where": "width > 180"}),
    "shards": ("stretch", {"shuffle": "shards", "shards_mixed": 2}),
    "ranks": ("stretch", {"rank": 1, "world_size": 2}),
    "processes": ("stretch", {"workers": "processes", "image": CLIP}),
    "device": ("stretch", {"device": "cpu", "image": CLIP}),
    "exclude": ("stretch", {"exclude": ["000000003"]}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_the_shards(pair, case):
    form, options = CASES[case]
    shards, arrays = pair(form, **options)
    assert_same_batches(arrays, shards)


@pytest.mark.parametrize("case", ["float32", "bfloat16", "flip", "flip uint8", "pad"])
def test_kernel_and_torch_write_the_same_pixels(pair, kernel, case):
    form, options = CASES[case]
    shards, arrays = pair(form, **options)
    assert_same_batches(arrays, shards)


def test_images_on_the_device_are_those_of_the_shards(pair):
    for budget in ("1MB", "20KB"):
        cache = CacheSpec(device=budget)
        shards, arrays = pair(device="cpu", epochs=3, cache=cache, image=CLIP)
        assert_same_batches(arrays, shards)
        assert arrays.stats()["device"].hits > 0


@pytest.mark.parametrize("meta", [(), rare(("text", "id"))])
@pytest.mark.parametrize(
    "options",
    [
        {"pack": 200},
        {"pack": 60, "overlong": "truncate"},
        {"batch_size": 4},
        {"max_tokens": 150, "buckets": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "encoded"])
def test_tokens_are_those_of_the_shards(packed, text, tmp_path, options, meta, stored):
    overlong = options.get("overlong", "raise")
    rest = {name: value for name, value in options.items() if name != "overlong"}
    spec = text(overlong=overlong)
    convert_dataset(
        packed, tmp_path / "arrays", image=SPECS["stretch"], text=spec if stored else None
    )
    common = {"image": CLIP, "text": spec, "meta": meta, "num_workers": 2, **rest}
    shards = datapipe.make_loader(packed, **common)
    arrays = datapipe.make_loader(tmp_path / "arrays", **common)
    assert_same_batches(arrays, shards)


def test_stored_tokens_are_taken_unless_another_tokenizer_is_given(packed, text, tmp_path):
    convert_dataset(packed, tmp_path / "arrays", image=SPECS["stretch"], text=text())
    for spec, more in (
        (text(), {"num_workers": 0}),
        (text(), {"workers": "processes", "num_workers": 2}),
        (text(template="llava"), {"num_workers": 2}),
    ):
        common: dict[str, Any] = {"image": CLIP, "text": spec, "pack": 200} | more
        arrays = datapipe.make_loader(tmp_path / "arrays", **common)
        assert_same_batches(arrays, datapipe.make_loader(packed, **common))
        arrays.close()


def test_arrays_that_lie_elsewhere_are_refused(converted, tmp_path, monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with (
        serving(converted["stretch"]) as server,
        pytest.raises(PlanError, match="must be local"),
    ):
        datapipe.make_loader(server.url, batch_size=4)


def test_texts_alone(packed, text, tmp_path):
    """Also of samples with images, which take no room then."""
    convert_dataset(packed, tmp_path / "arrays", image=None, text=text())
    assert not (tmp_path / "arrays/images.npy").exists()
    common = {"text": text(), "pack": 200}
    arrays = datapipe.make_loader(tmp_path / "arrays", **common)
    assert_same_batches(arrays, datapipe.make_loader(packed, image=None, **common))
    with pytest.raises(PlanError, match="hold no images"):
        datapipe.make_loader(tmp_path / "arrays", image=CLIP, **common)


def test_resuming_is_exact(converted, text):
    options: dict[str, Any] = {"image": CLIP, "text": text(), "pack": 200, "meta": ("key", "valid")}
    assert_resumes_exactly(
        lambda **more: datapipe.make_loader(converted["stretch"], **options, **more),
        stops=(0.4,),
        world_sizes=(1, 2),
    )


def test_numpy_reads_them(converted, make):
    folder = converted["stretch"]
    images = np.load(folder / "images.npy", mmap_mode="r")
    offsets = np.load(folder / "image_offsets.npy", mmap_mode="r")
    expected = [
        pixels.permute(1, 2, 0).numpy()
        for batch in make(image=SPECS["stretch"], shuffle=False, batch_size=37)
        for pixels in batch["pixel_values"]
    ]
    assert images.dtype == np.uint8
    assert images.shape == (len(expected), 24, 24, 3)
    assert (images == np.stack(expected)).all()
    assert offsets.tolist() == open_dataset(folder).columns.sample_image.tolist()
    texts = np.load(folder / "texts.npy", mmap_mode="r")
    assert texts.tobytes().startswith(b'{"id":"id-0"')


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": ImageSpec(size=32)}, r"size: \[24, 24\] there, \[32, 32\] asked for"),
        ({"image": ImageSpec(size=24, resize="pad")}, "resize: 'stretch' there, 'pad' asked for"),
        ({"image": ImageSpec(resize="dynamic")}, "many sizes"),
        ({"image": ImageSpec(size=24, random_crop=(0.1, 1))}, "a different part of an image"),
        ({"image": CLIP, "transform": print}, "before they are fitted"),
        ({"image": CLIP, "decoder": "dali"}, "decoded already"),
        ({"image": CLIP, "cache": CacheSpec(memory="1MB")}, "arrays are decoded"),
    ],
    ids=str,
)
def test_what_cannot_be_had_is_refused(converted, options, message):
    with pytest.raises(PlanError, match=message):
        datapipe.make_loader(converted["stretch"], batch_size=4, **options)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("images.npy", "its image in images.npy is not the one"),
        ("texts.npy", "its text in texts.npy is not the one"),
    ],
)
def test_damage_is_found(packed, tmp_path, name, what):
    convert_dataset(packed, tmp_path / "arrays", image=SPECS["stretch"])
    with (tmp_path / "arrays" / name).open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1000, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    options: dict[str, Any] = {"batch_size": 37, "image": CLIP}
    with pytest.raises(datapipe.DecodeError, match=what):
        list(datapipe.make_loader(tmp_path / "arrays", **options))
    dataset = open_dataset(tmp_path / "arrays")
    offsets = dataset.columns.member_offset[dataset.columns.sample_member[:-1]]
    place = int(np.load(tmp_path / "arrays/texts.npy", mmap_mode="r").size) - 1000
    owner = int(np.searchsorted(offsets, place, side="right")) - 1
    if name == "images.npy":
        owner = int(dataset.columns.sample_image.searchsorted(dataset.manifest.images)) - 1
    skipping = datapipe.make_loader(tmp_path / "arrays", on_error="skip", epochs=2, **options)
    for batch in skipping:
        assert [batch["key"][i] for i in np.flatnonzero(~batch["valid"])] == [
            dataset.columns.key(owner)
        ]
    assert len(
        list(datapipe.make_loader(tmp_path / "arrays", verify=False, image=None, batch_size=4))
    )


@pytest.mark.parametrize("name", ["images.npy", "texts.npy", "image_crc32.npy"])
def test_a_file_that_was_cut_is_refused(packed, tmp_path, name):
    convert_dataset(packed, tmp_path / "arrays", image=SPECS["stretch"])
    path = tmp_path / "arrays" / name
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(IndexMismatch, match=f"{name} has .* bytes, its index says"):
        datapipe.make_loader(tmp_path / "arrays", batch_size=4)
    path.unlink()
    with pytest.raises(IndexMismatch, match=f"{name} is missing"):
        datapipe.make_loader(tmp_path / "arrays", batch_size=4)


def test_images_that_are_not_in_memory_are_asked_for(converted):
    array = open_images(open_dataset(converted["stretch"]))
    assert array is not None
    assert array.begin(np.arange(5)) == 5 * 24 * 24 * 3
    assert array.begin(np.zeros(0, np.int64)) == 0


def test_arrays_that_are_removed_meanwhile_are_read_to_the_end(converted, tmp_path):
    shutil.copytree(converted["stretch"], tmp_path / "arrays")
    loader = datapipe.make_loader(tmp_path / "arrays", batch_size=4, num_workers=0)
    iterator = iter(loader)
    batches = [next(iterator)]
    shutil.rmtree(tmp_path / "arrays")
    batches.extend(iterator)
    expected = datapipe.make_loader(converted["stretch"], batch_size=4, num_workers=0)
    assert_same_batches(batches, expected)
    assert batches[0]["pixel_values"].shape[1:] == (3, 24, 24)  # as they were written
    assert batches[0]["pixel_values"].dtype == torch.uint8
