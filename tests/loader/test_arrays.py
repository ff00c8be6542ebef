"""Arrays give the batches that the shards they came from give, bit for bit; in mixtures too."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import datapipe
from datapipe import CacheSpec, ImageSpec, IndexMismatch, PlanError, convert_dataset
from datapipe.index.dataset import open_dataset
from datapipe.store.arrays import open_images
from datapipe.testing import assert_resumes_exactly, assert_same_batches
from tests.flipping import flip

from ..campaigns import rare
from ..remote.server import serving
from .stated import read, tried, with_specs

STRETCH = ImageSpec(size=24)
PAD = ImageSpec(size=(20, 28), resize="pad", normalize="clip")
CROP = ImageSpec(size=24, resize="crop", interpolation="bicubic")
CLIP = ImageSpec(size=24, normalize="clip")
FLIP = ImageSpec(size=24, normalize="imagenet", flip=0.5)
BFLOAT16 = ImageSpec(size=24, normalize="clip", dtype=torch.bfloat16)
CROP_FLIP = ImageSpec(size=24, resize="crop", interpolation="bicubic", flip=0.5)

WEIGHTS = {"a": 0.5, "b": 0.2, "c": 0.3}
META = ("key", "valid", "dataset", "sample")
GEOMETRY = ("image_geometry", "source", "sample", "id", "text")


@pytest.fixture(scope="module")
def folders(packed, tokenizer, tmp_path_factory):
    """Shards `a`, some samples of it `b`, those without images `c`, and arrays in capitals.

    `A` is `a` with tokens, `S` without, `P` padded, `X` cropped; `B` has no tokens, `T` is
    `c` as arrays of texts.
    """
    root = tmp_path_factory.mktemp("arrays")
    shards = {"a": packed, "b": root / "b", "c": root / "c"}
    few = datapipe.CopySpec(shard_size="5")
    datapipe.select_samples(packed, root / "b", number=23, output=few)
    datapipe.select_samples(packed, root / "c", where="images == 0")
    text = datapipe.TextSpec(tokenizer=tokenizer, template="chatml", image_tokens=6)
    convert_dataset(packed, root / "A", image=STRETCH, text=text, workers=2)
    for of, name, image in (("a", "S", STRETCH), ("a", "P", PAD), ("a", "X", CROP)):
        convert_dataset(shards[of], root / name, image=image, workers=2)
    convert_dataset(root / "b", root / "B", image=STRETCH)
    convert_dataset(root / "c", root / "T", text=text)
    return shards | {name: root / name for name in "ASPXBT"}


def shards_of(letters):
    """The shards that arrays came from."""
    return letters.lower().translate(str.maketrans("spxt", "aaac"))


@pytest.fixture
def load(folders):
    """Makes a loader of the dataset of a letter, or of a mixture `a`, `b` and `c` of several.

    `given` has options of datasets of the mixture, by name.
    """

    def make(letters, given=None, **changes):
        options = {"num_workers": 2, "image": STRETCH, "epochs": 2}
        if not changes.keys() & {"pack", "max_tokens"}:
            options["batch_size"] = 6
        if len(letters) == 1:
            return datapipe.make_loader(folders[letters], **options | changes)
        entries = {
            name: {"path": folders[letter], "weight": WEIGHTS[name], **(given or {}).get(name, {})}
            for name, letter in zip(WEIGHTS, letters, strict=False)
        }
        return datapipe.make_loader(entries, **options | {"meta": META} | changes)

    return make


@pytest.mark.parametrize("letters", ["A", "ABT", rare("AbT"), rare("aBc"), rare("AB")])
@pytest.mark.parametrize("options", tried("arrays", "cases"))
def test_batches_are_those_of_the_shards(load, options, letters):
    assert_same_batches(load(letters, **options), load(shards_of(letters), **options))


SIGLIP = {"b": {"image": {"size": 24, "normalize": "siglip", "flip": 0.5}}}


@pytest.mark.parametrize(
    ("letters", "image", "given"),
    [
        *(("A", image, None) for image in (CLIP, BFLOAT16, FLIP)),
        *(("X", CROP, None), ("X", CROP_FLIP, None), ("P", PAD, None), ("AB", CLIP, SIGLIP)),
    ],
    ids=["float32", "bfloat16", "flip", "crop", "flipped crop", "pad", "different"],
)
def test_kernel_and_torch_write_the_same_pixels(load, kernel, letters, image, given):
    options = {"given": given, "image": image, "meta": META if given else GEOMETRY}
    assert_same_batches(load(letters, **options), load(shards_of(letters), **options))


@pytest.mark.parametrize("letters", ["A", "AbT"])
def test_images_on_the_device_are_those_of_the_shards(load, letters):
    for budget in ("1MB", "20KB"):
        options = {"device": "cpu", "cache": CacheSpec(device=budget), "image": FLIP, "epochs": 3}
        arrays = load(letters, **options)
        assert_same_batches(arrays, load(shards_of(letters), **options))
        assert arrays.stats()["device"].hits > 0


@pytest.mark.parametrize("options", tried("arrays", "texts"))
@pytest.mark.parametrize("letters", ["A", "S", "AbT", rare("ABT")])
def test_tokens_are_those_of_the_shards(load, text, options, letters):
    """Stored tokens, and tokens that are made from the texts."""
    common = with_specs({"image": CLIP, "text": {}} | options, text=text)
    assert_same_batches(load(letters, **common), load(shards_of(letters), **common))


def test_arrays_that_lie_elsewhere_are_refused(folders):
    pytest.importorskip("aiohttp")
    with serving(folders["A"]) as server, pytest.raises(PlanError, match="must be local"):
        datapipe.make_loader(server.url, batch_size=4)


def test_shards_that_lie_elsewhere_are_read_beside_arrays(load, folders, tmp_path, monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    images = os.open(folders["A"] / "images.npy", os.O_RDONLY)
    os.fsync(images)
    os.posix_fadvise(images, 0, 0, os.POSIX_FADV_DONTNEED)  # not in the page cache
    os.close(images)
    with serving(folders["b"]) as server:
        far = load("AbT", {"b": {"path": server.url}}, epochs=1)
        assert_same_batches(far, load("abc", epochs=1))


def test_texts_alone(packed, text, tmp_path):
    """Also of samples with images, which take no room then."""
    convert_dataset(packed, tmp_path / "arrays", image=None, text=text())
    assert not (tmp_path / "arrays/images.npy").exists()
    common = {"text": text(), "pack": 200}
    arrays = datapipe.make_loader(tmp_path / "arrays", **common)
    assert_same_batches(arrays, datapipe.make_loader(packed, image=None, **common))
    with pytest.raises(PlanError, match="hold no images"):
        datapipe.make_loader(tmp_path / "arrays", image=CLIP, **common)


def test_resuming_is_exact(load, text):
    options = {"image": CLIP, "text": text(), "pack": 200, "meta": ("key", "valid")}
    assert_resumes_exactly(
        lambda **more: load("A", **options | {"epochs": 1}, **more),
        stops=(0.4,),
        world_sizes=(1, 2),
    )


def test_numpy_reads_them(folders, make):
    folder = folders["A"]
    images = np.load(folder / "images.npy", mmap_mode="r")
    offsets = np.load(folder / "image_offsets.npy", mmap_mode="r")
    (batch,) = make(image=STRETCH, shuffle=False, batch_size=37)
    assert images.dtype == np.uint8
    assert np.array_equal(images, batch["pixel_values"].permute(0, 2, 3, 1).numpy())
    assert offsets.tolist() == open_dataset(folder).columns.sample_image.tolist()
    texts = np.load(folder / "texts.npy", mmap_mode="r")
    assert texts.tobytes().startswith(b'{"id":"id-0"')


@pytest.mark.parametrize(("options", "message"), read("arrays")["refused"], ids=str)
@pytest.mark.parametrize(
    ("letters", "where"), [("A", ""), ("aB", "dataset 'b' of the mixture: .*")], ids=["A", "aB"]
)
def test_what_cannot_be_had_is_refused(load, letters, where, options, message):
    with pytest.raises(PlanError, match=where + message):
        load(letters, **with_specs(options))


def test_arrays_of_two_forms_are_refused(folders, tmp_path):
    convert_dataset(folders["b"], tmp_path / "pad", image=ImageSpec(size=24, resize="pad"))
    convert_dataset(folders["b"], tmp_path / "large", image=ImageSpec(size=28))
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


def test_images_have_the_form_of_the_arrays_unless_another_is_given(folders):
    common = {"batch_size": 8, "num_workers": 0}
    weights = {str(folders["a"]): 0.5, str(folders["B"]): 0.5}
    for data, shards in ((weights, weights), (folders["A"], folders["a"])):
        batches = list(datapipe.make_loader(data, **common))
        assert_same_batches(batches, datapipe.make_loader(shards, image=STRETCH, **common))
    texts = datapipe.make_loader({str(folders["T"]): 1}, **common)
    assert "pixel_values" not in next(iter(texts))


@pytest.mark.parametrize("name", ["images.npy", "texts.npy"])
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_damage_is_found_in_each(folders, tmp_path, caplog, name, workers):
    given, bad = {"c": {"path": folders["c"]}}, set()
    for letter in "AB":
        copy = shutil.copytree(folders[letter], tmp_path / letter.lower())
        given[copy.name] = {"path": copy}
        place = -100 if name == "images.npy" else (copy / name).read_bytes().rindex(b"human")
        flip(copy / name, place)
        columns = open_dataset(copy).columns
        last = len(columns.sample_image) - 2
        if name == "images.npy":
            last = int(columns.sample_image.searchsorted(columns.sample_image[-1])) - 1
        bad.add((f"{copy.name}/texts.npy:", columns.key(last)))
    options = {"batch_size": 16, "image": CLIP, "workers": workers, "num_workers": 1}
    what = "image" if name == "images.npy" else "text"
    with pytest.raises(datapipe.DecodeError, match=rf"texts.npy: its {what} in {name} is not"):
        list(datapipe.make_loader(given, **options))
    skipping = datapipe.make_loader(given, on_error="skip", epochs=2, **options)
    failed = {batch["key"][i] for batch in skipping for i in np.flatnonzero(~batch["valid"])}
    assert failed >= {key for _, key in bad}
    assert skipping.skipped == 2 * len(bad)  # what is damaged is not taken for good in epoch 1
    words = [record.getMessage().split() for record in caplog.records if "skipped" in record.msg]
    assert {(line[4], line[2]) for line in words} == bad  # skipped sample KEY of SHARD: ...
    assert len(list(datapipe.make_loader(given, verify=False, **options))) > 0


@pytest.mark.parametrize("name", ["images.npy", "texts.npy", "image_crc32.npy"])
def test_a_file_that_was_cut_is_refused(folders, tmp_path, name):
    path = shutil.copytree(folders["A"], tmp_path / "arrays") / name
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(IndexMismatch, match=f"{name} has .* bytes, its index says"):
        datapipe.make_loader(tmp_path / "arrays", batch_size=4)
    path.unlink()
    with pytest.raises(IndexMismatch, match=f"{name} is missing"):
        datapipe.make_loader(tmp_path / "arrays", batch_size=4)


def test_images_that_are_not_in_memory_are_asked_for(folders):
    array = open_images(open_dataset(folders["A"]))
    assert array is not None
    assert array.begin(np.arange(5)) == 5 * 24 * 24 * 3
    assert array.begin(np.zeros(0, np.int64)) == 0


def test_arrays_that_are_removed_meanwhile_are_read_to_the_end(folders, tmp_path):
    shutil.copytree(folders["A"], tmp_path / "arrays")
    iterator = iter(datapipe.make_loader(tmp_path / "arrays", batch_size=4, num_workers=0))
    batches = [next(iterator)]
    shutil.rmtree(tmp_path / "arrays")
    batches.extend(iterator)
    assert_same_batches(batches, datapipe.make_loader(folders["A"], batch_size=4))


def test_arrays_that_were_replaced_are_noticed(folders, tmp_path):
    place = tmp_path / "arrays"
    shutil.copytree(folders["A"], place)
    entries = {"a": {"path": place}, "b": {"path": folders["B"]}}
    loader = datapipe.make_loader(entries, batch_size=4, num_workers=0)
    shutil.rmtree(place)
    shutil.copytree(folders["B"], place)
    with pytest.raises(IndexMismatch, match="was packed or indexed again"):
        list(loader)
    again = datapipe.make_loader(entries, batch_size=4, num_workers=0, image=None)
    assert len(again.dataset) == 46


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux tells open files")
def test_files_of_arrays_do_not_stay_open(load, text):
    iterator = iter(load("ABT", text=text(), pack=200, num_workers=0))
    for _ in range(3):
        next(iterator)
    links = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(link))
        except FileNotFoundError:  # that of the folder itself
            continue
    assert not [link for link in links if link.endswith(".npy")]
