"""Shards named as the field names them: braces, lists, patterns; and where their index goes."""

import os

import pytest
from webdataset.shardlists import expand_urls

import datapipe
from datapipe.errors import IndexMismatch
from datapipe.index.dataset import open_dataset
from datapipe.index.tar.indexer import index_shards
from datapipe.index.tar.listing import expand, names_shards
from tests.case_files import cases


@pytest.fixture
def shards(tmp_path, make_tar, jpeg, monkeypatch):
    """Ten shards of one sample each, in the working folder, and an empty home for the cache."""
    for n in range(10):
        make_tar(tmp_path / "data" / f"train-{n:06d}.tar", [(f"{n}.jpg", jpeg(n))])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "data"


def keys(path):
    columns = open_dataset(path).columns
    return [columns.key(number) for number in range(len(columns.sample_key) - 1)]


@pytest.mark.parametrize(("text", "expected"), cases("index/tars_order"))
def test_the_order_is_that_of_the_list(shards, text, expected):
    assert keys(text.replace("{cwd}", os.getcwd())) == list(expected)


def test_a_loader_and_a_pack_take_a_list_too(shards, tmp_path, members, jpeg):
    text = "data/train-{000008..000009}.tar::data/train-000001.tar"
    loader = datapipe.make_loader(text, batch_size=1, shuffle=False, num_workers=0)
    assert [batch["key"][0] for batch in loader] == ["8", "9", "1"]
    report = datapipe.pack_dataset(text, tmp_path / "out")
    assert report.samples == 3
    assert [s["jpg"] for s in members(tmp_path / "out").values()] == [jpeg(8), jpeg(9), jpeg(1)]
    again = datapipe.pack_dataset(text, tmp_path / "out")
    assert again.finished_before


def test_shards_of_several_folders_are_one_dataset(shards, tmp_path, make_tar, jpeg):
    make_tar(tmp_path / "more" / "train-000000.tar", [("more.jpg", jpeg(0))])
    text = "more/train-000000.tar::data/train-000000.tar"
    assert keys(text) == ["more", "0"]
    shards = open_dataset(text).manifest.shards
    assert [shard.name for shard in shards] == ["more/train-000000.tar", "data/train-000000.tar"]
    (home,) = tmp_path.glob(".datapipe-*")
    assert (home / "more" / "train-000000.index.parquet").exists()


def test_every_list_has_an_index_of_its_own_beside_the_shards(shards, contents):
    before = contents(shards)
    one, other = "data/train-{000000..000001}.tar", "data/train-{000001..000002}.tar"
    assert (keys(one), keys(other), keys("data")) == (["0", "1"], ["1", "2"], list("0123456789"))
    assert len(list(shards.glob(".datapipe-*/dataset.json"))) == 2
    assert keys(one) == ["0", "1"]  # once more, from its index
    assert keys(os.path.abspath(one)) == ["0", "1"]
    assert len(list(shards.glob(".datapipe-*/dataset.json"))) == 2
    kept = {name: data for name, data in contents(shards).items() if name in before}
    assert kept == before


def test_a_shard_that_changed_is_noticed(shards, make_tar, jpeg):
    text = "data/train-{000000..000001}.tar"
    assert len(keys(text)) == 2
    make_tar(shards / "train-000001.tar", [(f"{n}.jpg", jpeg(n)) for n in range(20)])
    with pytest.raises(
        IndexMismatch, match=r"index --force 'data/train-\{000000\.\.000001\}\.tar'"
    ):
        keys(text)
    index_shards(text, force=True)
    assert len(keys(text)) == 21


@pytest.mark.parametrize(("text", "message"), cases("index/tars_refused"))
def test_what_cannot_be_read_is_named_with_the_remedy(shards, text, message):
    (shards / "notes.txt").touch()
    actions = [index_shards, open_dataset, lambda path: datapipe.make_loader(path, batch_size=1)]
    if not text.startswith(("s3:", "https:")):  # which packing downloads
        actions.append(lambda path: datapipe.pack_dataset(path, "out"))
    for action in actions:
        with pytest.raises(IndexMismatch, match=message):
            action(text)


def test_a_folder_whose_name_looks_like_a_list_is_a_folder(tmp_path, make_tar, jpeg):
    folder = tmp_path / "a::{0..1}[x]"
    make_tar(folder / "x.tar", [("0.jpg", jpeg(0))])
    assert not names_shards(folder)
    assert keys(folder) == ["0"]
    make_tar(tmp_path / "x[1].tar", [("7.jpg", jpeg(0))])
    assert keys(tmp_path / "x[1].tar") == ["7"]


def test_a_pack_of_a_list_has_one_format_and_goes_elsewhere(shards):
    with pytest.raises(datapipe.PackError, match=r"--format llava does not read"):
        datapipe.pack_dataset("data/train-{000000..000001}.tar", "out", format="llava")
    with pytest.raises(datapipe.PackError, match=r"data holds the tars that data/\*\.tar names"):
        datapipe.pack_dataset("data/*.tar", "data")
    assert datapipe.pack_dataset("data/*.tar", "data/packed").samples == 10


@pytest.mark.parametrize(("text", "kind"), cases("index/lists"))
def test_lists_stand_for_what_they_do_for_webdataset_and_in_urls(text, kind, monkeypatch):
    monkeypatch.setenv("WDS_ROOT", "/data/${DEEPER}")
    monkeypatch.setenv("WDS_DEEPER", "x")
    assert names_shards(text) == (kind != "no list")
    assert kind != "webdataset's list" or expand(text) == expand_urls(text)


def test_lists_in_a_read_only_folder_have_indexes_of_their_own_in_the_cache(shards, deny):
    deny(shards)
    one, other = "data/train-{000000..000001}.tar", "data/train-{000001..000000}.tar"
    assert (keys(one), keys(other), keys(one)) == (["0", "1"], ["1", "0"], ["0", "1"])
