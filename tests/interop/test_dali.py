"""DALI's WebDataset reader opens our shards, with the index that we write for it or its own."""

import numpy as np
import pytest

from datapipe.index.manifest import read_manifest
from datapipe.index.sidecars import write_sidecars
from datapipe.index.tar.indexer import index_shards

dali = pytest.importorskip("nvidia.dali")
wds2idx = pytest.importorskip("wds2idx")


@pytest.fixture
def packed(packed_mixture):
    write_sidecars(packed_mixture, read_manifest(packed_mixture), ["dali"])
    return packed_mixture


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


@pytest.mark.parametrize("indexed", [True, False])
def test_every_member_of_every_sample_is_read(packed, members, indexed):
    shards = sorted(packed.glob("*.tar"))
    indexes = [str(shard.with_suffix(".idx")) for shard in shards] if indexed else None
    extensions = ["jpg", "1.jpg", "json"]
    expected = [[sample.get(ext, b"") for ext in extensions] for sample in members(packed).values()]
    assert read(shards, extensions, indexes) == expected


def test_our_index_is_the_one_that_dali_makes(packed, tmp_path):
    theirs = tmp_path / "theirs.idx"
    for shard in packed.glob("*.tar"):
        with wds2idx.IndexCreator(str(shard), str(theirs), verbose=False) as creator:
            creator.create_index()
        assert shard.with_suffix(".idx").read_bytes() == theirs.read_bytes()


def test_foreign_samples_that_alternate_are_read_whole(make_tar, tmp_path):
    shard = make_tar(tmp_path / "a.tar", [("1.jpg", b"a"), ("2.jpg", b"b"), ("1.json", b"c")])
    write_sidecars(tmp_path, index_shards(tmp_path), ["dali"])
    found = read([shard], ["jpg", "json"], [str(tmp_path / "a.idx")], samples=2)
    assert found == [[b"a", b"c"], [b"b", b""]]
