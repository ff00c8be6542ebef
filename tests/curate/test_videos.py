"""Commands that copy, compare and convert datasets keep the frames of videos, and their order."""

import numpy as np
import pytest

import datapipe
from tests.flipping import flip
from tests.loader.video_shards import make_shards, members_of

from .conftest import data_at_offsets, rows


@pytest.fixture
def shards(tmp_path):
    return make_shards(tmp_path / "shards")


def pixels(path, **options):
    image = datapipe.ImageSpec(size=16, **options)
    loader = datapipe.make_loader(path, batch_size=1, image=image, shuffle=False, num_workers=0)
    return [batch["pixel_values"].numpy() for batch in loader]


def test_selected_samples_have_their_frames_in_order(shards, tmp_path):
    out = tmp_path / "out"
    datapipe.select_samples(shards, out, where="images > 10")
    copied = zip((row["ext"] for row in rows(out)), data_at_offsets(out), strict=True)
    kept = [list(zip(exts, contents, strict=True)) for exts, contents in copied]
    expected = [list(members_of(key).items()) for key in ("002", "003")]
    assert sorted(kept) == sorted(expected)
    assert [len(images) for images in pixels(out, max_frames=4)] == [8, 4]


def test_damaged_columns_of_fewer_frames_are_found_and_made_again(shards):
    datapipe.index_shards(shards)
    before = pixels(shards, max_frames=4)
    assert datapipe.verify_dataset(shards, deep=True).is_whole
    path = shards / "columns-4-frames" / "member_offset.npy"
    flip(path, 200)
    (finding,) = datapipe.verify_dataset(shards).findings
    assert finding.file == "columns-4-frames/member_offset.npy"
    for first, second in zip(before, pixels(shards, max_frames=4), strict=True):
        assert np.array_equal(first, second)
    assert datapipe.verify_dataset(shards).is_whole
    shard = shards / "shard-000000.tar"
    flip(shard, shard.read_bytes().index(b"v0.0020.jpg") + 712)
    (finding,) = datapipe.verify_dataset(shards).findings
    assert finding.member.endswith("v0.0020.jpg")


def test_arrays_of_videos_are_the_same_images(shards, tmp_path):
    datapipe.convert_dataset(shards, tmp_path / "arrays", image=datapipe.ImageSpec(size=16))
    for there, here in zip(pixels(shards), pixels(tmp_path / "arrays"), strict=True):
        assert np.array_equal(there, here)
