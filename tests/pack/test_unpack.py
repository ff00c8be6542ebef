"""Archives as raw data are refused with the command that unpacks them; the command works."""

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from datapipe import PackError, pack_dataset
from datapipe.pack.input.archives import unpack_command

from .cases import cases

TURNS = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A cat."}]


def command_in(error):
    return str(error.value).split("`")[1]


@pytest.mark.parametrize("format", [None, "webdataset", "folder"])
@pytest.mark.parametrize(("name", "command"), cases("archives and the commands that unpack them"))
def test_an_archive_given_as_raw_data_is_refused_with_its_command(
    tmp_path, monkeypatch, name, command, format
):
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(b"content")
    with pytest.raises(PackError, match=r"unpack it with `.*` and give ") as error:
        pack_dataset(name, "out", format=format)
    assert command_in(error) == command
    assert not Path("out").exists()


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json", "a.targets", "zip"])
def test_other_files_have_no_command(name):
    assert unpack_command(Path(name)) is None


def test_the_command_brings_what_can_be_packed(tmp_path, make_folder):
    raw = make_folder(tmp_path / "photos", 3)
    with tarfile.open(tmp_path / "my photos.tgz", "w:gz") as tar:
        tar.add(raw, "photos")
    with pytest.raises(PackError) as error:
        pack_dataset(tmp_path / "my photos.tgz", tmp_path / "out")
    subprocess.run(command_in(error), shell=True, check=True)
    assert pack_dataset(tmp_path / "my photos", tmp_path / "out").samples == 3


def test_a_compressed_shard_is_named_with_the_other_command_too(tmp_path, make_tar, jpeg):
    path = make_tar(tmp_path / "shard.tar", [("0.jpg", jpeg(0)), ("0.txt", b"text")])
    subprocess.run(["gzip", path], check=True)
    with pytest.raises(PackError, match=r"shard of WebDataset") as error:
        pack_dataset(tmp_path / "shard.tar.gz", tmp_path / "out")
    subprocess.run(str(error.value).split("`")[3], shell=True, check=True)
    assert pack_dataset(path, tmp_path / "out").samples == 1


def test_images_that_are_still_packed_are_named_beside_their_records(tmp_path, make_llava):
    raw = tmp_path / "raw"
    make_llava(raw, [{"image": f"images/{n}.jpg", "conversations": TURNS} for n in range(3)])
    with tarfile.open(raw / "images.tar.gz", "w:gz") as tar:
        tar.add(raw / "images", "images")
    shutil.rmtree(raw / "images")
    said = r"data\.json: its images \(the first is images/0\.jpg\) are in none of"
    with pytest.raises(PackError, match=said) as error:
        pack_dataset(raw / "data.json", tmp_path / "out")
    subprocess.run(command_in(error), shell=True, check=True)
    assert pack_dataset(raw / "data.json", tmp_path / "out", max_rejects=0).images == 3


@pytest.mark.parametrize("format", ["llava", "table", "coco"])
@pytest.mark.parametrize("name", ["train2017.zip", "train2017.7z", "images.zip.001"])
def test_records_beside_an_archive_alone_are_refused_at_once(tmp_path, raw, put, format, name):
    images = [{"id": n, "file_name": f"{n}.jpg"} for n in range(3)]
    captions = [{"id": n, "image_id": n, "caption": "a"} for n in range(3)]
    records = {
        "llava": [{"image": f"{n}.jpg", "conversations": TURNS} for n in range(3)],
        "table": [{"image": f"{n}.jpg", "text": "a"} for n in range(3)],
        "coco": {"images": images, "annotations": captions},
    }
    put(raw, {"captions.json": records[format], name: "content"})
    with pytest.raises(PackError, match=r"unpack (it|[\w.]+ first,) with `"):
        pack_dataset(raw, tmp_path / "out")


def test_an_archive_whose_content_lies_beside_it_is_left_out(tmp_path, put, rejects):
    raw = put(tmp_path / "raw", {"photos/1.jpg": 1, "photos/2.jpg": 2})
    shutil.make_archive(str(raw / "photos"), "zip", raw, "photos")
    said = ("left out: 1 file, archives whose content is beside them (photos.zip)",)
    assert pack_dataset(raw, tmp_path / "out").notes == said
    (raw / "photos" / "2.jpg").unlink()
    pack_dataset(raw, tmp_path / "again", max_rejects=1)
    assert [line["source"] for line in rejects(tmp_path / "again")] == ["photos.zip"]
