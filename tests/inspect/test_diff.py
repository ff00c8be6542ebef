"""Two datasets are compared by their indexes."""

import pytest

import datapipe
from datapipe import CopySpec


@pytest.fixture
def shards(whole):
    return whole.folder


def counts(diff):
    return diff.equal, diff.changed, diff.renamed, diff.only_a, diff.only_b


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
    assert counts(diff) == (8, 2, 1, 1, 1)
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
    twice, named = tmp_path / "twice", tmp_path / "named"
    datapipe.merge_datasets([shards, shards], twice, output=CopySpec(renumber=True))
    datapipe.merge_datasets([shards, shards], named, prefixes=["a-", "b-"])
    for one, other, expected in (
        (shards, twice, (12, 0, 0, 0, 12)),
        (shards, named, (0, 0, 12, 0, 12)),
        (named, twice, (0, 0, 24, 0, 0)),
    ):
        assert counts(datapipe.diff_datasets(one, other)) == expected


def test_arrays_are_refused(shards, tmp_path):
    datapipe.convert_dataset(shards, tmp_path / "arrays", image=datapipe.ImageSpec(size=8))
    with pytest.raises(datapipe.IndexMismatch, match="arrays; give the shards"):
        datapipe.diff_datasets(shards, tmp_path / "arrays")
