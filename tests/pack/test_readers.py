"""Outcome of each raw format: images, texts and metadata survive, under plain names."""

import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe import StoreError, pack_dataset, verify_dataset


def index_of(out):
    return pa.concat_tables(map(pq.read_table, sorted(out.glob("*.parquet")))).to_pylist()


def test_a_pattern_may_have_bytes_that_are_not_utf_8(tmp_path, raw, jpeg):
    (raw / "\udcff.jpg").write_bytes(jpeg(1))
    (raw / "other.jpg").write_bytes(jpeg(1))
    options = {"include": "\udcff*"}
    assert pack_dataset(raw, tmp_path / "out", **options).samples == 1
    (part,) = json.loads((tmp_path / "out/dataset.json").read_text("utf-8"))["parts"]
    assert part["options"]["include"] == "\udcff*"
    assert verify_dataset(tmp_path / "out").is_whole
    assert pack_dataset(raw, tmp_path / "out", **options).samples == 1  # finished already


# --- webdataset -------------------------------------------------------------------------------


def test_a_key_that_comes_again_is_a_sample_of_its_own(tmp_path, make_tar, jpeg, members):
    pairs = [("a.jpg", jpeg(0)), ("a.txt", b"1"), ("a.jpg", jpeg(1)), ("a.txt", b"2")]
    path = make_tar(tmp_path / "x.tar", [*pairs, ("b.jpg", jpeg(2)), *pairs[:2]])
    report = pack_dataset(path, tmp_path / "out", max_rejects=0)
    assert list(members(tmp_path / "out").values()) == [
        {"jpg": jpeg(0), "txt": b"1"},
        {"jpg": jpeg(1), "txt": b"2"},
        {"jpg": jpeg(2)},
        {"jpg": jpeg(0), "txt": b"1"},
    ]
    sources = [row["source"] for row in index_of(tmp_path / "out")]
    assert sources == ["x.tar:a", "x.tar:a#2", "x.tar:b", "x.tar:a#3"]
    assert any("2 samples with the key of an earlier one" in note for note in report.notes)


def test_a_hard_link_in_a_tar_brings_its_file(tmp_path, make_tar, jpeg, members):
    raw = make_tar(tmp_path / "raw.tar", [("a.jpg", jpeg(0)), ("b.txt", b"second")])
    with tarfile.open(raw, "a") as tar:
        link = tarfile.TarInfo("b.jpg")
        link.type, link.linkname = tarfile.LNKTYPE, "a.jpg"
        tar.addfile(link)
    pack_dataset(raw, tmp_path / "out")
    assert list(members(tmp_path / "out").values())[1] == {"txt": b"second", "jpg": jpeg(0)}


def test_a_name_that_a_sample_has_already_is_rejected_by_name(
    tmp_path, make_tar, packed, jpeg, rejects
):
    texts = [("a.txt", b"first"), ("a.txt", b"second")]
    images = [("b.jpg", jpeg(1)), ("a.jpg", jpeg(2))]
    first, second = packed(make_tar(tmp_path / "x.tar", [("a.jpg", jpeg(5)), *texts, *images]))
    assert first == {"jpg": jpeg(5), "txt": b"first"}
    assert second == {"jpg": jpeg(1)}
    of_text, of_image = rejects(tmp_path / "out")
    assert (of_text["source"], of_image["source"]) == ("x.tar:a.txt", "x.tar:a.jpg")
    assert of_text["reason"].startswith("the sample has this name twice, and the first is used")
    assert of_image["reason"].startswith(
        "the tar holds an earlier sample of this name with other members, so which belong together "
        "is unclear"
    )


@pytest.mark.parametrize("give", ["folder", "file"])
@pytest.mark.parametrize(("size", "what"), [(0, "is empty"), (2048, "without the blocks of zeros")])
def test_a_tar_without_its_end_is_refused_before_anything_is_packed(
    tmp_path, make_tar, jpeg, size, what, give
):
    make_tar(tmp_path / "raw" / "a.tar", [("a.jpg", jpeg(0))])
    path = make_tar(tmp_path / "raw" / "b.tar", [(f"{n}.txt", b"text") for n in range(4)])
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(StoreError, match=rf"b\.tar.*{what}.*copy or write it again"):
        pack_dataset(path if give == "file" else path.parent, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.tar*"))
