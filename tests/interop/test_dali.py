"""DALI's WebDataset reader opens our shards, with the index that we write for it or its own."""

from pathlib import Path

import numpy as np
import pytest

from datapipe.decode.image import decode_rgb
from datapipe.index.manifest import read_manifest
from datapipe.index.sidecars import write_sidecars
from datapipe.index.tar.indexer import index_shards

dali = pytest.importorskip("nvidia.dali")
wds2idx = pytest.importorskip("wds2idx")


@pytest.fixture
def packed(packed_mixture):
    write_sidecars(packed_mixture, read_manifest(packed_mixture), ["dali"])
    return packed_mixture


def index_of_ours(shard, target):
    return str(shard.with_suffix(".idx"))


def index_by_dali(shard, target):
    with wds2idx.IndexCreator(str(shard), str(target), verbose=False) as creator:
        creator.create_index()
    return str(target)


def read(shards, extensions, indexes=None, samples=9):
    @dali.pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipeline():
        how = {"index_paths": indexes} if indexes else {}
        members = dali.fn.readers.webdataset(
            paths=list(map(str, shards)), ext=extensions, missing_component_behavior="empty", **how
        )
        return tuple(members)

    pipe = pipeline()
    pipe.build()
    return [[np.array(part[0]).tobytes() for part in pipe.run()] for _ in range(samples)]


@pytest.mark.parametrize("index", [index_of_ours, index_by_dali, None])
def test_every_member_of_every_sample_is_read(packed, members, tmp_path, index):
    shards = sorted(packed.glob("*.tar"))
    indexes = [index(shard, tmp_path / f"{shard.stem}.idx") for shard in shards] if index else None
    extensions = ["jpg", "1.jpg", "json"]
    expected = [[sample.get(ext, b"") for ext in extensions] for sample in members(packed).values()]
    assert read(shards, extensions, indexes) == expected


def test_our_index_is_the_one_that_dali_makes(packed, tmp_path):
    for shard in packed.glob("*.tar"):
        theirs = Path(index_by_dali(shard, tmp_path / "theirs.idx"))
        assert shard.with_suffix(".idx").read_bytes() == theirs.read_bytes()


def test_foreign_samples_that_alternate_are_read_whole(make_tar, tmp_path):
    shard = make_tar(tmp_path / "a.tar", [("1.jpg", b"a"), ("2.jpg", b"b"), ("1.json", b"c")])
    write_sidecars(tmp_path, index_shards(tmp_path), ["dali"])
    found = read([shard], ["jpg", "json"], [index_of_ours(shard, None)], samples=2)
    assert found == [[b"a", b"c"], [b"b", b""]]


def test_images_decode_in_dali_to_what_we_decode(packed, members):
    @dali.pipeline_def(batch_size=6, num_threads=1, device_id=None)
    def pipeline():
        encoded = dali.fn.readers.webdataset(
            paths=[str(path) for path in sorted(packed.glob("*.tar"))],
            ext=["jpg"],
            missing_component_behavior="skip",
        )
        return dali.fn.decoders.image(encoded, device="cpu", output_type=dali.types.RGB)

    pipe = pipeline()
    pipe.build()
    (images,) = pipe.run()
    expected = [decode_rgb(sample["jpg"]) for sample in members(packed).values() if "jpg" in sample]
    assert len(expected) == 6
    for image, pixels in zip(images, expected, strict=True):
        assert np.array(image).shape == pixels.shape
        assert np.abs(np.array(image).astype(int) - pixels).mean() < 2
