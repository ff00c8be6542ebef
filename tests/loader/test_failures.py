"""Samples and shards that fail while a loader runs."""

import shutil
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

import datapipe
from datapipe import DecodeError, ImageSpec, IndexMismatch, SampleError, StoreError
from datapipe.index.columns import DTYPES
from datapipe.index.dataset import open_dataset
from datapipe.index.files.block_checksums import write_sums
from datapipe.index.files.sealed_json import seal, unseal
from tests.workers.process_list import worker_processes

from .conftest import DAMAGED

pytestmark = pytest.mark.usefixtures("no_processes_left")

either = pytest.mark.parametrize("workers", ["threads", "processes"])


@pytest.fixture
def make_damaged(damaged):
    def make(**options):
        options = {"batch_size": 4, "image": ImageSpec(size=16), "shuffle": False} | options
        return datapipe.make_loader(damaged, **options)

    return make


@pytest.mark.parametrize(
    ("options", "processes"),
    [
        ({"num_workers": 0}, 0),
        ({"num_workers": 3}, 0),
        ({"num_workers": 2, "workers": "processes"}, 2),
        ({"num_workers": 3, "device": "cpu"}, 0),
    ],
    ids=str,
)
def test_the_first_failing_sample_is_named_after_the_batches_before_it(
    make_damaged, options, processes
):
    loader = make_damaged(batch_size=2, prefetch_factor=8, **options)
    for _ in range(2):  # the same workers go on
        iterator = iter(loader)
        keys = [key for _ in range(3) for key in next(iterator)["key"]]
        assert keys == [f"{number:09}" for number in range(6)]
        with pytest.raises(DecodeError) as caught:
            next(iterator)
        assert caught.value.key == "000000006"
        assert caught.value.member.startswith("000000006.")
        assert caught.value.shard == "shard-000000.tar"
        assert "not those that were packed" in str(caught.value)
        with pytest.raises(datapipe.DatapipeError, match="closed"):
            next(iterator)
    assert len(worker_processes()) == processes


@either
def test_a_skipped_sample_leaves_an_empty_slot_and_nothing_else_moves(
    make_damaged, make, caplog, workers
):
    whole = list(make(shuffle=False, image=ImageSpec(size=16)))
    loader = make_damaged(on_error="skip", num_workers=3, workers=workers)
    for expected, batch in zip(whole, loader, strict=True):
        assert batch["key"] == expected["key"]
        assert batch["pixel_values"].shape == expected["pixel_values"].shape
        assert torch.equal(batch["images_per_sample"], expected["images_per_sample"])
        row = 0
        for slot, key in enumerate(batch["key"]):
            rows = slice(row, row + int(batch["images_per_sample"][slot]))
            row = rows.stop
            if key in DAMAGED:
                assert not batch["valid"][slot]
                assert batch["text"][slot] == ""
                assert not batch["pixel_values"][rows].any()
            else:
                assert batch["valid"][slot] == expected["valid"][slot]
                assert torch.equal(batch["pixel_values"][rows], expected["pixel_values"][rows])
    assert loader.skipped == 2
    assert all(f"sample {key}" in caplog.text for key in DAMAGED)


@either
def test_too_many_skipped_samples_raise(make_damaged, workers):
    options = {"on_error": "skip", "workers": workers}
    list(make_damaged(run=datapipe.RunSpec(max_skipped=2), **options))
    with pytest.raises(datapipe.DatapipeError, match="max_skipped=1"):
        list(make_damaged(run=datapipe.RunSpec(max_skipped=1), **options))
    # The last step of 20 repeats the 21st sample, which is not counted again.
    loader = make_damaged(batch_size=20, run=datapipe.RunSpec(max_skipped=2), **options)
    list(loader)
    assert loader.skipped == 2


@either
def test_a_shard_that_is_gone_or_cut_off_is_no_sample_to_be_skipped(make_damaged, workers):
    cut, gone = (make_damaged(on_error="skip", workers=workers) for _ in range(2))
    with (cut.dataset.folder / "shard-000003.tar").open("r+b") as file:
        file.truncate(5000)
    (gone.dataset.folder / "shard-000002.tar").rename(gone.dataset.folder / "away")
    with pytest.raises(StoreError, match=r"shard-000002\.tar") as caught:
        list(gone)
    if workers == "processes":
        assert "in a worker process" in str(caught.value.__cause__)
    (gone.dataset.folder / "away").rename(gone.dataset.folder / "shard-000002.tar")
    with pytest.raises(StoreError, match="cut off"):
        list(cut)


def test_a_shard_that_changed_is_noticed_when_the_dataset_is_opened(damaged):
    with (damaged / "shard-000001.tar").open("ab") as file:
        file.write(b"x")
    with pytest.raises(IndexMismatch, match=r"shard-000001\.tar"):
        datapipe.make_loader(damaged, batch_size=1)


def test_too_large_images_are_refused_by_their_header(make):
    with pytest.raises(SampleError, match="more than the limit of 100"):
        next(iter(make(image=ImageSpec(size=16, refuse_above=100))))


LEAVING_OUT = "images == 0 or 0.005 <= aspect <= 200"


def test_an_image_too_long_for_qwen2_vl_is_named(tokenizer, tmp_path, make_tar, encode):
    images = [Image.new("RGB", size) for size in ((60, 40), (1, 5000), (200, 1), (1005, 5))]
    pictures = [(f"{number}.png", encode(image, "PNG")) for number, image in enumerate(images)]
    texts = [(f"{number}.txt", b"A picture.") for number in range(4)]
    make_tar(tmp_path / "strips" / "a.tar", sorted(pictures + texts))
    load = partial(datapipe.make_loader, tmp_path / "strips", shuffle=False, epochs=2)
    text = datapipe.TextSpec(tokenizer=tokenizer, template="caption")
    for cache in (None, datapipe.CacheSpec(memory=1 << 20)):
        options = {"image": ImageSpec.preset("qwen2-vl"), "text": text, "cache": cache}
        options["batch_size"] = 1
        with pytest.raises(DecodeError) as caught:
            list(load(**options))
        message = str(caught.value)
        assert (caught.value.key, caught.value.member) == ("1", "1.png")
        assert "it has 1x5000 pixels, an aspect ratio of 5,000, and the image processors" in message
        assert LEAVING_OUT in message
        found = [b["image_grid_thw"].tolist() for b in load(where=LEAVING_OUT, **options)]
        assert found == [[[1, 4, 6]], [[1, 2, 58]]] * 2
        skipping = load(on_error="skip", meta="valid", **options)
        seen = [(bool(b["valid"][0]), bool((b["labels"] != -100).any())) for b in skipping]
        assert seen == [(True, True), (False, False), (True, True), (False, False)] * 2
    for name in ("imagenet", "clip", "siglip", "internvl", "llava-next"):  # any ratio
        batch = next(iter(load(batch_size=4, image=ImageSpec.preset(name))))
        assert len(batch["pixel_values"]) >= 4


def test_an_error_of_our_own_is_not_skipped(make, monkeypatch):
    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr("datapipe.decode.forms.fixed.FixedTransform.place", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        list(make(on_error="skip"))


@pytest.mark.parametrize("ending", ["jpg", "json"])
def test_one_changed_byte_that_still_decodes_is_noticed(packed, tmp_path, ending):
    folder = tmp_path / "flipped"
    shutil.copytree(packed, folder)
    dataset = open_dataset(folder)
    member = next(m for m in dataset.columns.members(1) if m.ext == ending)
    shard = folder / "shard-000000.tar"
    content = bytearray(shard.read_bytes())
    # A coefficient of the first quantisation table; a letter of the answer.
    before, step = (b"\xff\xdb", 10) if ending == "jpg" else (b"It is", 0)
    content[content.index(before, member.offset) + step] ^= 1
    shard.write_bytes(content)

    def read(verify):
        loader = datapipe.make_loader(
            folder, batch_size=2, shuffle=False, image=ImageSpec(size=8), verify=verify
        )
        return next(iter(loader))

    with pytest.raises(DecodeError, match=f"000000001.{ending}.*not those that were packed"):
        read(verify=True)
    assert read(verify=False)["valid"].all()


@pytest.mark.parametrize("decoder", ["cpu", "dali"])
def test_an_image_of_another_size_than_the_index_says_is_named(packed, tmp_path, decoder):
    if decoder == "dali":
        pytest.importorskip("nvidia.dali")
    folder = tmp_path / "stale"
    shutil.copytree(packed, folder)
    columns = open_dataset(folder).columns
    image = int(columns.sample_image[6])
    width, height = int(columns.image_width[image]), int(columns.image_height[image])
    path = folder / "columns" / "image_width.npy"
    widths = np.load(path)
    widths[image] += 1
    np.save(path, widths)
    # With checksums of its own: tars of someone else may change behind their index.
    about = unseal((path.parent / "columns.json").read_bytes())
    about["checksums_crc32"] = write_sums(path.parent, [f"{name}.npy" for name in DTYPES])
    (path.parent / "columns.json").write_text(seal(about))
    loader = datapipe.make_loader(folder, batch_size=4, shuffle=False, decoder=decoder)
    message = f"000000006 .* it is {width}x{height}, the index says {width + 1}x{height}"
    with pytest.raises(DecodeError, match=message):
        list(loader)
