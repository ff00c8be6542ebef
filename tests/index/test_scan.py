"""Tars that someone else wrote are indexed without being rewritten, however they are named."""

import gzip
import io
import json
import logging
import os
import subprocess
import tarfile
import threading
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from webdataset.shardlists import expand_urls

import datapipe
from datapipe.errors import IndexMismatch, StoreError
from datapipe.index.columns import find_keys
from datapipe.index.dataset import open_dataset
from datapipe.index.tar.headers import TarScanner
from datapipe.index.tar.indexer import index_shards
from datapipe.index.tar.listing import expand, names_shards
from tests.case_files import cases


def keys_of(folder):
    columns = open_dataset(folder).columns
    return columns.keys(np.arange(len(columns.text_bytes)))


def test_names_of_any_kind_are_indexed(tmp_path, make_tar, jpeg):
    names = ["a/b c/00.JPG", "a/b c/00.Txt", "v1.0/ü.jpeg", "v1.0/ü.caption", "UPPER.PNG.jpg"]
    make_tar(tmp_path / "x.tar", [(n, jpeg(1) if "J" in n or "j" in n else b"hi") for n in names])
    assert keys_of(tmp_path) == ["a/b c/00", "v1.0/ü", "UPPER"]
    columns = open_dataset(tmp_path).columns
    assert columns.text_bytes.tolist() == [2, 2, 0]
    assert columns.image_width.tolist() == [41] * 3


@pytest.mark.parametrize(("names", "samples", "said"), cases("index/left_out"))
def test_members_of_no_sample_are_left_out_by_name(
    tmp_path, make_tar, jpeg, caplog, names, samples, said
):
    members = ((name, jpeg(0) if name.endswith("jpg") else b"x") for name in names.split())
    make_tar(tmp_path / "x.tar", members)
    assert keys_of(tmp_path) == samples.split()
    assert [line for line in caplog.messages if "left out" in line] == ([said] if said else [])
    assert said or not caplog.text


def test_samples_whose_text_only_packing_reads_are_left_out_by_name(tmp_path, make_tar, caplog):
    pair = [("a.question.txt", b"What?"), ("a.answer.txt", b"A cat.")]
    plain = [("b.txt", b"b"), ("b.question.txt", b"What?"), ("c.txt", b"c"), ("d.alt.txt", b"d")]
    told = [("e.x.txt", b"x"), ("e.json", b'{"caption": "e"}'), ("f.x.txt", b"x"), ("f.y.txt", b"")]
    make_tar(tmp_path / "x.tar", pair + plain + told)
    with caplog.at_level(logging.WARNING):
        assert keys_of(tmp_path) == ["b", "c", "e"]
    for reason, sample in (
        ("its text is in `question.txt` and `answer.txt`, which is read when", "a"),
        ("its text is in `alt.txt`, which is read when the tars are packed", "d"),
        ("what is to be learnt of its texts (`x.txt`, `y.txt`)", "f"),
    ):
        (line,) = (line for line in caplog.messages if f"left out: 1 sample, {reason}" in line)
        assert line.endswith(f"(x.tar:{sample})")


def test_tars_whose_texts_only_packing_reads_are_refused(tmp_path, make_tar, jpeg):
    names = [f"{number}.{ext}" for number in range(3) for ext in ("question.txt", "answer.txt")]
    make_tar(tmp_path / "x.tar", [(name, b"a") for name in names] + [("3.txt", b"a")])
    with pytest.raises(IndexMismatch, match=r"x\.tar: 3 of 4 samples .* run `datapipe pack`"):
        index_shards(tmp_path)


def test_a_sample_that_comes_again_is_a_sample_of_its_own(tmp_path, make_tar, jpeg, caplog):
    pairs = [("0.jpg", jpeg(0)), ("0.txt", b"a"), ("0.jpg", jpeg(1)), ("0.txt", b"bcd")]
    make_tar(tmp_path / "x.tar", [*pairs, ("1.jpg", jpeg(2)), *pairs])
    columns = open_dataset(tmp_path).columns
    assert [[m.ext for m in columns.members(n)] for n in range(5)] == [
        ["jpg", "txt"], ["jpg", "txt"], ["jpg"], ["jpg", "txt"], ["jpg", "txt"]
    ]  # fmt: skip
    assert columns.image_width.tolist() == [40, 41, 42, 40, 41]
    assert columns.text_bytes.tolist() == [1, 3, 0, 1, 3]
    assert [columns.key(n) for n in range(5)] == ["0", "0", "1", "0", "0"]
    assert find_keys(columns, ["0", "1", "none"]) == {"0": 0, "1": 2}
    assert columns.sources(np.array([1, 3])) == ["x.tar:0#2", "x.tar:0#3"]
    assert "3 samples with the key of an earlier one" in caplog.text


def test_texts_inside_json_members_are_measured(tmp_path, make_tar, jpeg):
    lengths = {
        b'{"caption": "four"}': 4,
        b'{"conversations": [{"from": "human", "value": "hi"}]}': len("user: hi"),
        b'{"caption": "\\ud800"}': 3,
        b"[1, 2]": 0,
        b"{broken": 0,
    }
    pairs = (((f"{n}.jpg", jpeg(0)), (f"{n}.json", record)) for n, record in enumerate(lengths))
    make_tar(tmp_path / "x.tar", (member for pair in pairs for member in pair))
    assert open_dataset(tmp_path).columns.text_bytes.tolist() == [*lengths.values()]


def test_a_json_member_that_is_a_list_of_turns_is_a_conversation(tmp_path, make_tar):
    turns = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    make_tar(tmp_path / "x.tar", [("0.json", json.dumps(turns).encode())])
    (batch,) = datapipe.make_loader(tmp_path, image=None, batch_size=1, num_workers=0)
    assert batch["text"] == ["user: 1+1?\nassistant: 2"]
    assert open_dataset(tmp_path).columns.text_bytes.tolist() == [len(batch["text"][0])]


def test_a_broken_image_is_reported_and_has_no_size(tmp_path, make_tar, jpeg, caplog):
    make_tar(tmp_path / "x.tar", [("0.jpg", b"<html>"), ("1.jpg", jpeg(1))])
    columns = open_dataset(tmp_path).columns
    assert (columns.image_width.tolist(), columns.image_height.tolist()) == ([0, 41], [0, 31])
    assert caplog.messages == [
        "cannot be read: 1 member, not an image of a known format (it is an HTML page) "
        "(x.tar:0.jpg)"
    ]


def test_a_header_longer_than_the_first_read_is_followed(tmp_path, make_tar, encode, crop, caplog):
    make_tar(tmp_path / "x.tar", [("0.jpg", encode(crop(), icc_profile=bytes(60_000)))])
    columns = open_dataset(tmp_path).columns
    assert (columns.image_width[0], columns.image_height[0]) == (48, 32)
    assert not caplog.messages


def test_shards_in_folders_below_are_found_and_hidden_ones_are_not(tmp_path, make_tar, jpeg):
    for name in ("b/1.tar", "a/0.tar", "a/._0.tar"):
        make_tar(tmp_path / name, [(f"{name[0]}.jpg", jpeg(0))])
    assert keys_of(tmp_path) == ["a", "b"]


def test_a_folder_of_packed_datasets_is_no_dataset(tmp_path, make_folder):
    for name in ("train", "val"):
        datapipe.pack_dataset(make_folder(tmp_path / f"raw-{name}"), tmp_path / "all" / name)
    with pytest.raises(IndexMismatch, match=r"all/train, .*all/val\); give one of them, or a list"):
        datapipe.make_loader(tmp_path / "all", batch_size=1)
    listed = str(tmp_path / "all" / "{train,val}" / "shard-000000.tar")
    assert index_shards(listed).samples == 16


def test_parquet_files_of_other_tools_are_left_alone(tmp_path, make_tar, jpeg):
    make_tar(tmp_path / "00000.tar", [("0.jpg", jpeg(0))])
    pq.write_table(pa.table({"url": ["a"]}), tmp_path / "00000.parquet")
    before = (tmp_path / "00000.parquet").read_bytes()
    index_shards(tmp_path)
    assert (tmp_path / "00000.parquet").read_bytes() == before
    assert (tmp_path / "00000.index.parquet").exists()


def test_the_tars_are_not_touched_and_equal_bytes_alone_give_the_same_index(
    tmp_path, make_tar, contents
):
    for where in ("a", "b"):
        make_tar(tmp_path / where / "x.tar", [("0.txt", b"hello")])
        index_shards(tmp_path / where)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    before = contents(tmp_path / "a")
    fingerprint = index_shards(tmp_path / "a", force=True).fingerprint
    assert contents(tmp_path / "a") == before
    make_tar(tmp_path / "a" / "x.tar", [("0.txt", b"world")])
    assert index_shards(tmp_path / "a", force=True).fingerprint != fingerprint


def test_compressed_shards_are_refused_with_the_remedy(tmp_path, make_tar):
    tar = make_tar(tmp_path / "x.tar", [("0.txt", b"a")])
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(tar.read_bytes()))
    with pytest.raises(IndexMismatch, match=r"compressed .*x.tar.gz.*decompress them first"):
        index_shards(tmp_path)  # beside others it is not passed over
    tar.unlink()
    with pytest.raises(IndexMismatch, match=r"x\.tar\.gz"):
        index_shards(tmp_path)
    (tmp_path / "x.tar.gz").rename(tar)
    with pytest.raises(StoreError, match="compressed with gzip") as error:
        index_shards(tmp_path)
    assert not (tmp_path / "dataset.json").exists()
    subprocess.run(str(error.value).split("`")[1], shell=True, check=True)
    assert index_shards(tmp_path).samples == 1


def test_an_unfinished_pack_is_not_taken_for_foreign_shards(tmp_path, make_tar):
    make_tar(tmp_path / "shard-000000.tar", [("0.txt", b"hello")])
    (tmp_path / ".pack").mkdir()
    for action in (index_shards, open_dataset):
        with pytest.raises(IndexMismatch, match="run the same `datapipe pack` command again"):
            action(tmp_path)


def test_shards_added_after_indexing_are_noticed_when_the_dataset_is_opened(
    tmp_path, make_tar, jpeg
):
    make_tar(tmp_path / "a.tar", [("0.jpg", jpeg(0))])
    assert len(open_dataset(tmp_path)) == 1
    make_tar(tmp_path / "b.tar", [("1.jpg", jpeg(1))])
    with pytest.raises(IndexMismatch, match=r"b\.tar.*--force"):
        open_dataset(tmp_path)
    index_shards(tmp_path, force=True)
    assert len(open_dataset(tmp_path)) == 2


def test_every_member_has_the_checksum_of_its_bytes(tmp_path, make_tar, jpeg):
    make_tar(tmp_path / "none.tar", [])
    expected = []
    for shard in range(9):
        content = [(f"{i}.{ext}", jpeg(shard + i) * 90) for i in range(3) for ext in ("jpg", "bin")]
        content += [("3.jpg", b""), ("4.txt", b"hello"), ("5.jpg", jpeg(0) + bytes(3 << 20))]
        make_tar(tmp_path / f"{shard}.tar", content)
        expected += [zlib.crc32(data) for _, data in content]
    columns = open_dataset(tmp_path).columns
    assert columns.member_crc32.tolist() == expected
    assert [columns.key(number) for number in range(12)] == [*"012345"] * 2


def test_a_link_has_the_checksum_of_what_it_links_to(tmp_path, jpeg, caplog):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        astray = tarfile.TarInfo("a.jpg")
        astray.type, astray.linkname = tarfile.SYMTYPE, "elsewhere.jpg"
        tar.addfile(astray)
        for name, kind in (("0.jpg", tarfile.REGTYPE), ("1.jpg", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "0.jpg" if kind == tarfile.LNKTYPE else ""
            info.size = len(jpeg(0)) if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(jpeg(0)))
    columns = open_dataset(tmp_path).columns
    assert [columns.members(n)[0].crc32 for n in range(2)] == [zlib.crc32(jpeg(0))] * 2
    assert "links to elsewhere.jpg" in caplog.text


def test_a_tar_that_shrinks_while_it_is_read_is_named(tmp_path, make_tar):
    path = make_tar(tmp_path / "x.tar", [("0.bin", bytes(5000))])
    with TarScanner(path, window=512) as tar:
        member = next(iter(tar))
        os.truncate(path, 2048)
        with pytest.raises(StoreError, match=r"x\.tar, byte 2048: the file ends inside"):
            tar.checksum(member)


def test_a_damaged_shard_ends_indexing_of_those_begun(tmp_path, make_tar, jpeg):
    for shard in range(12):
        make_tar(tmp_path / f"{shard:02d}.tar", [(f"{i}.jpg", jpeg(i)) for i in range(50)])
    with (tmp_path / "03.tar").open("r+b") as file:
        file.write(b"?" * 100)
    with pytest.raises(StoreError, match=r"03\.tar, byte 0: this is not a tar file"):
        index_shards(tmp_path)
    assert not (tmp_path / "dataset.json").exists()
    assert not [thread for thread in threading.enumerate() if "index" in thread.name]


# Tars that braces, lists and patterns name.


@pytest.fixture
def shards(tmp_path, make_tar, jpeg, monkeypatch):
    """Ten shards of one sample each, in the working folder, and an empty home for the cache."""
    for n in range(10):
        make_tar(tmp_path / "data" / f"train-{n:06d}.tar", [(f"{n}.jpg", jpeg(n))])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "data"


@pytest.mark.parametrize(("text", "expected"), cases("index/tars_order"))
def test_the_order_is_that_of_the_list(shards, text, expected):
    assert keys_of(text.replace("{cwd}", os.getcwd())) == list(expected)


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
    assert keys_of(text) == ["more", "0"]
    shards = open_dataset(text).manifest.shards
    assert [shard.name for shard in shards] == ["more/train-000000.tar", "data/train-000000.tar"]
    (home,) = tmp_path.glob(".datapipe-*")
    assert (home / "more" / "train-000000.index.parquet").exists()


def test_every_list_has_an_index_of_its_own_beside_the_shards(shards, contents):
    before = contents(shards)
    one, other = "data/train-{000000..000001}.tar", "data/train-{000001..000002}.tar"
    assert (keys_of(one), keys_of(other), keys_of("data")) == (
        ["0", "1"],
        ["1", "2"],
        list("0123456789"),
    )
    assert len(list(shards.glob(".datapipe-*/dataset.json"))) == 2
    assert keys_of(one) == ["0", "1"]  # once more, from its index
    assert keys_of(os.path.abspath(one)) == ["0", "1"]
    assert len(list(shards.glob(".datapipe-*/dataset.json"))) == 2
    kept = {name: data for name, data in contents(shards).items() if name in before}
    assert kept == before


def test_a_shard_that_changed_is_noticed(shards, make_tar, jpeg):
    text = "data/train-{000000..000001}.tar"
    assert len(keys_of(text)) == 2
    make_tar(shards / "train-000001.tar", [(f"{n}.jpg", jpeg(n)) for n in range(20)])
    with pytest.raises(
        IndexMismatch, match=r"index --force 'data/train-\{000000\.\.000001\}\.tar'"
    ):
        keys_of(text)
    index_shards(text, force=True)
    assert len(keys_of(text)) == 21


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
    assert keys_of(folder) == ["0"]
    make_tar(tmp_path / "x[1].tar", [("7.jpg", jpeg(0))])
    assert keys_of(tmp_path / "x[1].tar") == ["7"]


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
    assert (keys_of(one), keys_of(other), keys_of(one)) == (["0", "1"], ["1", "0"], ["0", "1"])
