"""Duplicates are dropped by name: equal images, and images that look alike."""

import shutil

import numpy as np
import pytest
from PIL import Image

import datapipe
from datapipe import CopySpec
from tests.flipping import flip

from .conftest import rows

SCENES = 12


def scene(number):
    """Patches of grey, of another layout for each number."""
    grey = np.random.default_rng(number).integers(0, 256, (12, 12), np.uint8)
    return Image.fromarray(grey).resize((240, 180), Image.Resampling.BICUBIC).convert("RGB")


@pytest.fixture(scope="module")
def shards(tmp_path_factory, encode):
    """Twelve scenes; then copies of some: as they are, smaller, of less quality."""
    raw = tmp_path_factory.mktemp("raw")
    images = [encode(scene(number)) for number in range(SCENES)]
    images += [images[3], images[4], encode(scene(5).resize((120, 90)))]
    images += [encode(scene(6), quality=30), encode(scene(99))]
    texts = [f"scene {number}" for number in range(SCENES)]
    texts += ["scene 3", "another text", "small", "coarse", "new"]
    for number, (image, text) in enumerate(zip(images, texts, strict=True)):
        (raw / f"{number:02}.jpg").write_bytes(image)
        (raw / f"{number:02}.txt").write_text(text)
    datapipe.pack_dataset(raw, raw.parent / "shards", shard_size=5, workers=1)
    return raw.parent / "shards"


@pytest.mark.parametrize(
    ("options", "dropped"),
    [
        ({}, {12: 3, 13: 4}),
        ({"text": True}, {12: 3}),
        ({"near": 8}, {12: 3, 13: 4, 14: 5, 15: 6}),
        ({"near": 8, "text": True}, {12: 3}),
        ({"near": 0}, {12: 3, 13: 4}),
    ],
)
def test_the_first_is_kept_and_others_are_listed(shards, tmp_path, rejects, options, dropped):
    report = datapipe.dedup_dataset(shards, tmp_path / "out", **options)
    found = rejects(tmp_path / "out")
    if options.get("near") == 0:  # compression may leave the hash as it was
        found = [line for line in found if "look like" not in line["reason"]]
    assert {int(line["file"]): line["reason"].split("sample ")[1][:9] for line in found} == {
        number: f"{kept:09}" for number, kept in dropped.items()
    }
    assert {line["source"] for line in found} == {f"{number:02}.jpg" for number in dropped}
    assert {line["error"] for line in found} == {"Duplicate"}
    assert report.samples + report.rejected == 17
    gone = {line["file"] for line in rejects(tmp_path / "out")}
    kept = [row for row in rows(shards, "offset") if row["key"] not in gone]
    assert rows(tmp_path / "out", "offset") == kept


def test_samples_of_several_images_need_the_same_ones(tmp_path, make_llava, rejects):
    names = [["a.jpg", "bb.jpg"], ["bb.jpg", "a.jpg"], ["a.jpg"], ["a.jpg", "bb.jpg"], [], []]
    records = [
        {"conversations": [{"from": "human", "value": "<image>" * len(name) + "text"},
                           {"from": "gpt", "value": "yes"}]} | ({"image": name} if name else {})
        for name in names
    ]  # fmt: skip
    raw = make_llava(tmp_path / "raw", records)
    datapipe.pack_dataset(raw, tmp_path / "shards")
    for near in (None, 3):
        out = tmp_path / f"out{near}"
        datapipe.dedup_dataset(tmp_path / "shards", out, near=near)
        assert [line["file"] for line in rejects(out)] == ["000000003"]
    datapipe.dedup_dataset(tmp_path / "shards", tmp_path / "text", text=True)
    assert [line["file"] for line in rejects(tmp_path / "text")] == ["000000003", "000000005"]


def test_what_was_decoded_is_not_decoded_again(shards, tmp_path, contents):
    """Images of a shard that cannot be read stop it after the shards before."""
    source, out = shutil.copytree(shards, tmp_path / "source"), tmp_path / "out"

    def run(out):
        return datapipe.dedup_dataset(source, out, near=8, output=CopySpec("4"))

    def hashes():
        found = {path: path.stat() for path in sorted((out / ".pack").glob("hashes-*"))}
        return {p: (s.st_ino, s.st_mtime_ns, p.read_bytes()) for p, s in found.items()}

    flip(source / "shard-000002.tar", 600)
    with pytest.raises(datapipe.StoreError, match=r"shard-000002\.tar, sample 000000010, member"):
        run(out)
    (first, was), (second, kept) = list(hashes().items())[:2]
    flip(first, 9)
    with pytest.raises(datapipe.StoreError, match=r"shard-000002\.tar"):
        run(out)
    assert hashes()[first][2] == was[2]
    assert hashes()[second] == kept
    flip(source / "shard-000002.tar", 600)  # as it was
    run(out)
    assert run(out).finished_before
    run(tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


def test_images_that_cannot_be_decoded_are_like_no_other(tmp_path, encode, make_tar, members):
    broken = encode(scene(1))[:900]
    held = {"1": encode(scene(1)), "2": broken, "3": broken + b"2", "4": encode(scene(1))}
    make_tar(tmp_path / "tars" / "0.tar", [(f"{key}.jpg", data) for key, data in held.items()])
    datapipe.dedup_dataset(tmp_path / "tars", tmp_path / "out", near=32)
    assert list(members(tmp_path / "out")) == ["1", "2", "3"]
