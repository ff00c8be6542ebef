"""What a person means by a dataset and no reader takes is named, with what to do."""

import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.errors import PackError
from datapipe.pack.raw import ReadOptions
from datapipe.pack.readers import choose_reader


@pytest.fixture
def images(tmp_path, jpeg):
    """A folder with two images in a folder below."""
    raw = tmp_path / "raw"
    (raw / "images").mkdir(parents=True)
    for number in range(2):
        (raw / "images" / f"{number}.jpg").write_bytes(jpeg(number))
    return raw


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("train.txt", "0.jpg\n1.jpg\n", "write it as CSV or JSONL"),
        ("labels.txt", "0.jpg 3\n1.jpg 5\n", "write it as CSV or JSONL"),
        ("scores.tsv", "0.jpg\t3\t1\n1.jpg\t4\t2\n", "records with '0.jpg', '3', '1'"),
        ("by_id.json", json.dumps({"0": {"image": "0.jpg"}, "1": {"image": "1.jpg"}}), "array"),
        ("data.json", json.dumps({"n": 1, "data": [{"image": "0.jpg"}]}), "array of records"),
    ],
)
def test_captions_that_no_format_reads_are_not_left_behind(images, name, content, remedy):
    (images / name).write_text(content)
    with pytest.raises(PackError, match="pack the images alone with --format folder") as caught:
        choose_reader(images)
    assert f"{name} names images or" in str(caught.value)
    assert remedy in str(caught.value)
    assert choose_reader(images, "folder").name == "folder"


@pytest.mark.parametrize(
    ("name", "content"),
    [("README.txt", "Photographs of cats."), ("README.md", "![](0.jpg)"), ("meta.json", "{}")],
)
def test_files_that_name_no_images_do_not_stand_in_the_way(images, name, content):
    (images / name).write_text(content)
    assert choose_reader(images).name == "folder"


RECORDS_OF_IDS = [
    ("aokvqa.json", json.dumps([{"image_id": 0, "question": "?"}, {"image_id": 1}])),
    ("results.csv", "image_id,caption\n0,A dog\n"),
    ("questions.json", json.dumps({"info": {}, "questions": [{"image_id": 0}, {"image_id": 1}]})),
    ("by_id.jsonl", '{"image_id": 0}\n{"image_id": 1}\n'),
]


@pytest.mark.parametrize(("name", "content"), RECORDS_OF_IDS)
def test_records_that_tell_of_images_by_their_ids_are_not_left_behind(images, name, content):
    (images / name).write_text(content)
    with pytest.raises(PackError, match=rf"{name} names images or tells of them but no format"):
        choose_reader(images)


@pytest.mark.parametrize(("name", "content"), RECORDS_OF_IDS)
def test_records_beside_images_with_texts_do_not_stand_in_the_way(images, name, content):
    (images / name).write_text(content)
    (images / "captions").mkdir()
    (images / "captions" / "0.txt").write_text("A dog")
    assert choose_reader(images).name == "folder"


def test_lists_of_files_are_no_captions(images):
    (images / "train.txt").write_text("images/0.jpg\nimages/1.jpg\n")
    assert choose_reader(images).name == "folder"


def test_where_images_have_sidecars_a_list_of_them_does_not_stand_in_the_way(images):
    (images / "images" / "0.txt").write_text("A dog")
    (images / "train.txt").write_text("0.jpg\n1.jpg\n")
    assert choose_reader(images).name == "folder"


@pytest.mark.parametrize("name", ["Thumbs.db", "desktop.ini"])
def test_what_windows_leaves_in_folders_is_no_input(images, name):
    (images / "images" / name).write_bytes(b"x")
    reader = choose_reader(images)
    assert len(list(reader.read(images, ReadOptions()))) == 2


def test_a_table_of_urls_is_to_be_downloaded(tmp_path):
    (tmp_path / "cc3m.tsv").write_text("a caption\thttp://x.y/0.jpg\nanother\thttp://x.y/1.jpg\n")
    for raw in (tmp_path, tmp_path / "cc3m.tsv"):
        with pytest.raises(PackError, match=r"cc3m.tsv: records with .*img2dataset"):
            choose_reader(raw)


def test_an_object_that_holds_the_records_is_named(tmp_path):
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"data": [{"image": "0.jpg", "caption": "A"}]}))
    with pytest.raises(PackError, match="one JSON object; write it as an array of records"):
        choose_reader(path)


def test_arrow_files_of_hugging_face_are_named(tmp_path):
    (tmp_path / "data-00000-of-00001.arrow").write_bytes(b"")
    (tmp_path / "state.json").write_text(
        '{"_fingerprint": "a", "_data_files": [{"filename": "d"}]}'
    )
    with pytest.raises(PackError, match=r"to_parquet") as caught:
        choose_reader(tmp_path)
    assert "state.json:" not in str(caught.value)


def test_a_folder_below_that_is_recognised_is_named(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "other").mkdir()
    with tarfile.open(tmp_path / "train" / "0.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())
    with pytest.raises(PackError, match=r"train looks like webdataset: give that folder") as caught:
        choose_reader(tmp_path)
    assert "other looks like" not in str(caught.value)


def test_parquet_inside_gzip_is_to_be_unpacked(tmp_path):
    path = tmp_path / "part.parquet.gz"
    path.write_bytes(b"\x1f\x8b" + bytes(20))
    with pytest.raises(PackError, match="gunzip"):
        list(choose_reader(path).read(path, ReadOptions()))


def test_parquet_that_is_merely_called_gz_is_read(tmp_path, jpeg):
    path = tmp_path / "part.parquet.gz"
    pq.write_table(pa.Table.from_pylist([{"jpg": jpeg(0), "txt": "A"}]), path, compression="gzip")
    assert len(list(choose_reader(path).read(path, ReadOptions()))) == 1
