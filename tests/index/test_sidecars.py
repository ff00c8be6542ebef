import json
import logging
import os
import struct
import tarfile

import pytest

from datapipe import CopySpec, pack_dataset, select_samples
from datapipe.errors import IndexMismatch
from datapipe.index.manifest import read_manifest
from datapipe.index.sidecars import KINDS, parse_sidecars, write_sidecars
from datapipe.index.tar.indexer import index_shards
from tests.case_files import cases


@pytest.fixture
def packed(tmp_path, make_folder):
    """Three shards of an image and a caption."""
    pack_dataset(make_folder(tmp_path / "raw", 5), tmp_path / "out", shard_size="2")
    return tmp_path / "out"


@pytest.fixture
def foreign(tmp_path, make_tar):
    """A function that indexes one shard of the members given and writes sidecars for it."""

    def write(members, *kinds, name="a.tar"):
        folder = make_tar(tmp_path / "foreign" / name, members, tarfile.GNU_FORMAT).parent
        return write_sidecars(folder, index_shards(folder, force=True), kinds)

    return write


def sidecars(folder, *kinds):
    written = write_sidecars(folder, read_manifest(folder), kinds)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in written}


def test_kinds_are_listed_with_commas():
    assert parse_sidecars("wids, dali,wids,") == ("dali", "wids")
    assert parse_sidecars(",".join(KINDS)) == tuple(sorted(KINDS))
    for kinds in ("dali,idx", "DALI"):
        with pytest.raises(IndexMismatch, match=r"'(idx|DALI)'; choose from dali, wids, energon"):
            parse_sidecars(kinds)


def test_those_of_a_view_are_refused_as_they_would_replace_those_of_its_source(packed, tmp_path):
    before = sidecars(packed, *KINDS)
    output = CopySpec(view=True)
    select_samples(packed, tmp_path / "view", where="key != '000000001'", output=output)
    for kind in KINDS:
        with pytest.raises(IndexMismatch, match=r"is a view.*`datapipe select`, without --view"):
            sidecars(tmp_path / "view", kind)
    assert {name: (packed / name).read_bytes() for name in before} == before
    assert sidecars(tmp_path / "view") == {}
    select_samples(tmp_path / "view", tmp_path / "shards", output=CopySpec(sidecars="dali"))


def test_energon_gets_the_place_of_every_sample(packed):
    written = sidecars(packed, "energon")
    edges = [edge for (edge,) in struct.iter_unpack("<Q", written["shard-000000.tar.idx"])]
    content = (packed / "shard-000000.tar").read_bytes()
    assert content[edges[0] :].startswith(b"000000000.jpg\0")
    assert content[edges[1] :].startswith(b"000000001.jpg\0")
    assert content[edges[2] :] == bytes(1024)  # the end of the archive
    assert json.loads(written[".nv-meta/.info.json"])["shard_counts"] == {
        "shard-000000.tar": 2,
        "shard-000001.tar": 2,
        "shard-000002.tar": 1,
    }
    assert b'train:\n  - "shard-000000.tar"\n' in written[".nv-meta/split.yaml"]


@pytest.mark.parametrize(("names", "expected"), cases("index/energon"))
def test_energon_gets_captions_where_every_sample_has_one_picture_and_a_text(
    foreign, tmp_path, encode, names, expected
):
    kinds = {"jpg": encode(), "avif": encode(), "png": encode(kind="PNG"), "json": b"{}"}
    members = [(name, kinds.get(name.rpartition(".")[2], b"a")) for name in names.split()]
    foreign(members, "energon")
    assert expected in (tmp_path / "foreign/.nv-meta/dataset.yaml").read_text()


def test_what_a_person_set_for_energon_is_kept_and_said(packed, tmp_path, make_folder, caplog):
    sidecars(packed, "energon")
    left = packed / ".nv-meta/.split.yaml.tmp-1"
    left.touch()  # by a run that was killed
    mine = packed / ".nv-meta/split.yaml"
    mine.write_text("split_parts: {train: [], val: [shard-000000.tar]}\n")
    with caplog.at_level(logging.WARNING):
        written = sidecars(packed, "energon")
    assert mine.read_text().startswith("split_parts: {")
    assert ".nv-meta/split.yaml" not in written
    assert "split.yaml is kept as it was" in caplog.text
    assert not left.exists()
    caplog.clear()
    pack_dataset(tmp_path / "raw", packed, shard_size="2")  # is finished
    assert "is kept" not in caplog.text
    pack_dataset(make_folder(tmp_path / "more", 1), packed, append=True)
    assert "split.yaml is kept as it was" in caplog.text


def test_energon_does_not_expand_braces_in_the_name_of_a_shard(foreign, tmp_path):
    foreign([("1.txt", b"a")], "energon", name="{1,2}.tar")
    assert r'- "\\{1\\,2\\}.tar"' in (tmp_path / "foreign/.nv-meta/split.yaml").read_text()


def test_they_are_written_again_from_the_indexes_alone_and_packed_over(packed, tmp_path, contents):
    first, before = sidecars(packed, *KINDS), contents(packed)
    assert len(first) == 3 + 1 + 3 + 3
    report = pack_dataset(packed, tmp_path / "again")
    assert (report.samples, report.rejected) == (5, 0)
    for path in packed.glob("*.tar"):
        del before[path.name]
        path.unlink()
    assert sidecars(packed, *reversed(KINDS), "dali") == first
    assert contents(packed) == before


def test_foreign_shards_are_described_from_an_index_elsewhere(tmp_path, make_tar, jpeg):
    folder, home = tmp_path / "shards", tmp_path / "home"
    make_tar(folder / "a/x.tar", [("n.1.jpg", jpeg(1)), ("dir/n.TXT", b"text")])
    written = write_sidecars(folder, index_shards(folder, home=home), KINDS, home=home)
    names = {path.relative_to(folder).as_posix() for path in written}
    assert {"a/x.idx", "a/x.tar.idx", "shardindex.json"} < names
    assert (folder / "a/x.idx").read_text().splitlines()[2].endswith(" 4 dir/n.TXT")


def test_foreign_names_in_extended_headers_belong_to_their_sample(foreign, tmp_path):
    foreign([("1.txt", b"a"), ("d" * 120 + ".txt", b"b"), ("2.txt", b"c")], "energon")
    edges = struct.unpack("<4Q", (tmp_path / "foreign/a.tar.idx").read_bytes())
    content = (tmp_path / "foreign/a.tar").read_bytes()
    assert content[edges[1] :].startswith(b"././@LongLink\0")
    assert content[edges[2] :].startswith(b"2.txt\0")


@pytest.mark.parametrize(
    ("kinds", "names", "message"),
    [*cases("index/refused_sidecars"), ("wids", "d" * 97 + ".txt", "wids .*repack")],
)
def test_members_that_a_reader_would_mistake_are_refused(foreign, kinds, names, message):
    content = {"2.mp3": b"ID3" + bytes(9)}
    members = [(name.replace("_", " "), content.get(name, b"a")) for name in names.split(" ")]
    for kind in kinds.split():
        with pytest.raises(IndexMismatch, match=r"a\.tar: .*" + message):
            foreign(members, kind)


@pytest.mark.parametrize("name", ["a#b.tar", "a?b.tar", "s3:a.tar"])
def test_a_shard_whose_name_is_no_path_in_an_address_is_refused_for_wids(foreign, name):
    with pytest.raises(IndexMismatch, match="wids reads the name of a shard as a URL"):
        foreign([("1.txt", b"a")], "wids", name=name)


def test_samples_that_alternate_or_are_left_out_are_no_matter_for_dali(foreign, tmp_path):
    foreign([("1.txt", b"a"), ("2.txt", b"b"), ("1.cls", b"c")], "dali")
    assert (tmp_path / "foreign/a.idx").read_text() == (
        "v1.2 2\ntxt 512 1 1.txt cls 2560 1 1.cls\ntxt 1536 1 2.txt\n"
    )
    foreign([("1.txt", b"a"), ("2.mp3", b"ID3" + bytes(9)), ("2.txt", b"b")], "dali")
    assert (tmp_path / "foreign/a.idx").read_text() == "v1.2 1\ntxt 512 1 1.txt\n"


def test_images_under_other_names_keep_the_names_that_the_tar_has(foreign, tmp_path, jpeg):
    image = jpeg(1)
    foreign([("1.img", image), ("1.l.jpg", image), ("1.txt", b"a")], *KINDS)
    (line,) = (tmp_path / "foreign/a.idx").read_text().splitlines()[1:]
    assert line.split()[::4] == ["img", "l.jpg", "txt"]
    assert line.split()[3::4] == ["1.img", "1.l.jpg", "1.txt"]
    foreign([("1.2.jpg", image), ("1.1.jpg", image), ("1.txt", b"a")], *KINDS, name="../two/a.tar")
    (line,) = (tmp_path / "two/a.idx").read_text().splitlines()[1:]
    assert line.split()[::4] == ["2.jpg", "1.jpg", "txt"]
    foreign([("1.img", image), ("1.txt", b"a")], "energon", name="../one/a.tar")
    assert "Crude" in (tmp_path / "one/.nv-meta/dataset.yaml").read_text()


def test_a_name_beyond_ascii_is_refused_for_wids_only_in_an_extended_header(make_tar, tmp_path):
    for format, folder in ((tarfile.GNU_FORMAT, "gnu"), (tarfile.PAX_FORMAT, "pax")):
        make_tar(tmp_path / folder / "a.tar", [("1.txt", b"a"), ("größe.txt", b"b")], format)
    write_sidecars(tmp_path / "gnu", index_shards(tmp_path / "gnu"), ["wids"])
    with pytest.raises(IndexMismatch, match=r"wids cannot read the name 'größe\.txt'"):
        write_sidecars(tmp_path / "pax", index_shards(tmp_path / "pax"), ["wids"])


def test_an_index_of_other_shards_is_refused(packed):
    os.replace(packed / "shard-000001.parquet", packed / "shard-000000.parquet")
    with pytest.raises(IndexMismatch, match="is not the index"):
        sidecars(packed, "dali")


def test_a_folder_that_cannot_be_written_is_named(packed):
    (packed / ".nv-meta").write_text("")
    with pytest.raises(IndexMismatch, match="sidecars cannot be written"):
        sidecars(packed, "energon")
