"""Converting shards to arrays: the same bytes however it went, and nothing lost silently."""

import resource
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

import datapipe
from datapipe import ImageSpec, PackError, PlanError, convert_dataset
from datapipe.index.dataset import open_dataset
from datapipe.testing import assert_same_batches
from tests.flipping import flip
from tests.limits import limited

from ..remote.server import serving
from .conftest import DAMAGED
from .damage import overwrite_image

IMAGE = ImageSpec(size=24)


def test_bytes_do_not_depend_on_threads(packed, text, tmp_path, contents):
    for workers in (1, 3):
        convert_dataset(packed, tmp_path / str(workers), image=IMAGE, text=text(), workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "3")


def break_off(limit, **options):
    """Convert while no file may have more bytes than these, as on a disk that is full."""
    full = pytest.raises((OSError, PackError), match="File too large")
    with limited(resource.RLIMIT_FSIZE, limit), full:
        convert_dataset(**options)
    with pytest.raises(datapipe.IndexMismatch, match="not finished"):
        open_dataset(options["arrays"])


TINY = ImageSpec(size=2)  # so that texts.npy is the largest file, which grows shard by shard


@pytest.mark.parametrize("limit", [500, 1_000, 4_500])
def test_a_conversion_that_broke_off_goes_on(packed, text, tmp_path, limit, contents):
    options = {"shards": packed, "image": TINY, "text": text()}
    convert_dataset(arrays=tmp_path / "whole", **options)
    options["arrays"] = tmp_path / "broken"
    break_off(limit, **options, workers=2)
    convert_dataset(**options)
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")


@pytest.mark.parametrize("number", [2, 8])  # after texts.npy, and after the other arrays
def test_a_conversion_that_ended_while_files_went_into_place_goes_on(
    packed, text, tmp_path, failing_disk, number, contents
):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    options = {"image": IMAGE, "text": text()}
    convert_dataset(packed, whole, **options)
    with failing_disk("replace", number.__eq__), pytest.raises(PackError, match="No space left"):
        convert_dataset(packed, broken, **options)
    assert (broken / "texts.npy").exists()
    convert_dataset(packed, broken, **options)
    assert contents(broken) == contents(whole)


@pytest.mark.usefixtures("three_threads")
def test_torch_keeps_its_threads(packed, tmp_path):
    convert_dataset(packed, tmp_path / "arrays", image=IMAGE)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 3


def test_the_same_command_again_has_nothing_to_do(packed, tmp_path, contents):
    first = convert_dataset(packed, tmp_path / "arrays", image=IMAGE)
    before = contents(tmp_path / "arrays")
    # How images are normalised and mirrored makes no difference.
    same = ImageSpec(size=24, normalize="clip", flip=0.5)
    again = convert_dataset(packed, tmp_path / "arrays", image=same)
    assert again.finished_before
    assert (again.samples, again.images, again.bytes) == (first.samples, first.images, first.bytes)
    assert contents(tmp_path / "arrays") == before
    (tmp_path / "arrays" / "images.npy").unlink()
    with pytest.raises(datapipe.IndexMismatch, match=r"images\.npy is missing"):
        convert_dataset(packed, tmp_path / "arrays", image=IMAGE)


def test_broken_images_are_named_and_end_it_if_they_are_too_many(damaged, tmp_path, rejects):
    """A sample whose second image is broken leaves none of its images in the arrays."""
    overwrite_image(damaged, 3, image=1)
    with pytest.raises(PackError, match="3 of 37 inputs were rejected"):
        convert_dataset(damaged, tmp_path / "arrays", image=IMAGE, max_rejects="1%")
    report = convert_dataset(damaged, tmp_path / "arrays", image=IMAGE, max_rejects=3)
    assert (report.samples, report.rejected) == (34, 3)
    named = rejects(tmp_path / "arrays")
    assert [reject["file"].split(".")[0] for reject in named] == ["000000003", *DAMAGED]
    assert all("the shard is damaged" in reject["reason"] for reject in named)
    options = {"batch_size": 1, "image": IMAGE, "shuffle": False, "epochs": 2}
    arrays = datapipe.make_loader(tmp_path / "arrays", **options)
    whole = datapipe.make_loader(damaged, on_error="skip", **options)
    assert_same_batches(arrays, [batch for batch in whole if batch["valid"].all()])
    assert arrays.dataset.manifest.rejected == 3
    images = np.load(tmp_path / "arrays/images.npy", mmap_mode="r")
    assert len(images) == report.images == arrays.dataset.manifest.images


def test_other_options_and_other_shards_are_refused(packed, tmp_path):
    out = tmp_path / "arrays"
    convert_dataset(packed, out, image=IMAGE)
    with pytest.raises(
        PackError, match=r"other options \(image.size: \[\d+, \d+\] before, \[32, 32\] now\)"
    ):
        convert_dataset(packed, out, image=ImageSpec(size=32))
    raw = tmp_path / "raw"
    raw.mkdir()
    Image.new("RGB", (50, 40)).save(raw / "black.png")
    datapipe.pack_dataset(raw, tmp_path / "others")
    with pytest.raises(PackError, match="arrays of other shards"):
        convert_dataset(tmp_path / "others", out, image=IMAGE)
    with pytest.raises(PackError, match="holds arrays already"):
        convert_dataset(out, tmp_path / "again", image=IMAGE)
    with pytest.raises(PackError, match="holds the shards"):
        convert_dataset(packed, packed, image=IMAGE)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("...")
    with pytest.raises(PackError, match="neither empty"):
        convert_dataset(packed, tmp_path / "mine", image=IMAGE)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (ImageSpec(resize="native"), "many sizes"),
        (ImageSpec(size=24, random_crop=(0.5, 1)), "arrays hold one"),
    ],
)
def test_images_that_have_no_one_size_are_refused(packed, tmp_path, image, message):
    with pytest.raises(PlanError, match=message):
        convert_dataset(packed, tmp_path / "arrays", image=image)
    assert not (tmp_path / "arrays").exists()


@pytest.mark.usefixtures("full_disk")
def test_a_disk_that_is_too_small_is_found_out_first(packed, tmp_path):
    with pytest.raises(PackError, match=r"are needed, 10\.0 KB are free"):
        convert_dataset(packed, tmp_path / "arrays", image=IMAGE)
    report = convert_dataset(packed, tmp_path / "arrays", image=IMAGE, space_check=False)
    assert report.samples == 37


def test_shards_that_lie_elsewhere(packed, tmp_path, monkeypatch, contents, make_folder, rejects):
    pytest.importorskip("aiohttp")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shards, more = shutil.copytree(packed, tmp_path / "shards"), make_folder(tmp_path / "more", 2)
    (more / "empty.jpg").touch()
    datapipe.pack_dataset(more, shards, append=True, max_rejects=1)
    convert_dataset(shards, tmp_path / "here", image=IMAGE)
    with serving(shards) as server:
        convert_dataset(server.url, tmp_path / "there", image=IMAGE, workers=2)
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    assert [reject["source"] for reject in rejects(tmp_path / "there")] == ["empty.jpg"]


def test_tars_of_someone_else(packed, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for path in packed.glob("*.tar"):
        shutil.copy(path, foreign)
    convert_dataset(foreign, tmp_path / "arrays", image=IMAGE)
    options = {"batch_size": 4, "image": IMAGE, "shuffle": False}
    assert_same_batches(
        datapipe.make_loader(tmp_path / "arrays", **options),
        datapipe.make_loader(foreign, **options),
    )


def test_what_was_damaged_meanwhile_is_converted_again(packed, text, tmp_path, caplog, contents):
    out, kept = tmp_path / "broken", tmp_path / "kept"
    options = {"shards": packed, "image": TINY, "text": text()}
    convert_dataset(arrays=tmp_path / "whole", **options)
    whole = contents(tmp_path / "whole")
    options["arrays"] = out
    break_off(4_500, **options)
    shutil.copytree(out, kept)
    names = [f"{name}.npy" for name in ("texts", "tokens", "labels", "token_offsets")]
    names += [f"image_{name}.npy" for name in ("crc32", "placement", "offsets")]
    names += ["part-000000.parquet", "convert.jsonl"]
    for name in (*names, "images.npy", "torn journal"):
        shutil.rmtree(out)
        shutil.copytree(kept, out)
        path = out / ".pack" / ("convert.jsonl" if name == "torn journal" else name)
        flip(path, 150)
        if name == "images.npy":  # flips are found when images are read
            path.unlink()
        if name == "torn journal":
            path.write_bytes((kept / ".pack" / path.name).read_bytes()[:-20])
        caplog.clear()
        convert_dataset(**options)
        assert contents(out) == whole, name
        assert name == "torn journal" or f"{name} is damaged; converting everything" in caplog.text
