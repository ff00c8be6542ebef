"""Two datasets are compared by their indexes."""

from pathlib import Path

import pytest

import datapipe
from datapipe import CopySpec


@pytest.fixture(scope="module")
def raw(tmp_path_factory, make_folder):
    return Path(make_folder(tmp_path_factory.mktemp("raw"), 9))


@pytest.fixture(scope="module")
def shards(tmp_path_factory, raw):
    out = tmp_path_factory.mktemp("packed") / "shards"
    datapipe.pack_dataset(raw, out, shard_size=4, workers=1)
    return out


def counts(diff):
    return diff.equal, diff.changed, diff.renamed, diff.only_a, diff.only_b


def test_datasets_with_the_same_samples_are_the_same(shards, raw, tmp_path):
    datapipe.pack_dataset(raw, tmp_path / "again", shard_size=2, workers=1)
    diff = datapipe.diff_datasets(shards, tmp_path / "again")
    assert diff.is_same
    assert diff.samples == (9, 9)
    assert counts(diff) == (9, 0, 0, 0, 0)
    assert not any(diff.examples.values())


def test_every_difference_is_counted_and_named(shards, tmp_path, make_tar, members):
    held = members(shards)
    del held["000000000"]
    held["000000001"]["txt"] = b"another text"
    held["000000002"]["gif"] = b"one more"
    held["renamed"] = held.pop("000000004")
    held["new"] = {"txt": b"new"}
    names = [(f"{key}.{ext}", data) for key, of in held.items() for ext, data in of.items()]
    make_tar(tmp_path / "tars" / "0.tar", names[::-1])  # in whatever order
    diff = datapipe.diff_datasets(shards, tmp_path / "tars")
    assert not diff.is_same
    assert counts(diff) == (5, 2, 1, 1, 1)
    assert diff.examples == {
        "changed": ("000000001", "000000002"),
        "renamed": ("000000004 -> renamed",),
        "only_a": ("000000000",),
        "only_b": ("new",),
    }
    back = datapipe.diff_datasets(tmp_path / "tars", shards)
    assert counts(back) == counts(diff)
    assert back.examples["only_b"] == diff.examples["only_a"]


def test_samples_that_come_twice_count_twice(shards, tmp_path):
    output = CopySpec(renumber=True)
    datapipe.merge_datasets([shards, shards], tmp_path / "twice", output=output)
    assert counts(datapipe.diff_datasets(shards, tmp_path / "twice")) == (9, 0, 0, 0, 9)
    datapipe.merge_datasets([shards, shards], tmp_path / "named", prefixes=["a-", "b-"])
    assert counts(datapipe.diff_datasets(shards, tmp_path / "named")) == (0, 0, 9, 0, 9)
    assert counts(datapipe.diff_datasets(tmp_path / "named", tmp_path / "twice")) == (
        *(0, 0, 18, 0, 0),
    )


def test_arrays_are_refused(shards, tmp_path):
    datapipe.convert_dataset(shards, tmp_path / "arrays", image=datapipe.ImageSpec(size=8))
    with pytest.raises(datapipe.IndexMismatch, match="arrays; give the shards"):
        datapipe.diff_datasets(shards, tmp_path / "arrays")
