"""Tars of other people whose texts are elsewhere than in a member `txt`."""

import json
import subprocess

import pytest

from datapipe import PackError, pack_dataset

NAMES = [f"{number}.jpg" for number in range(6)]
LINES = "".join(f"{name}\ta photograph\n" for name in NAMES).encode()
ROWS = "".join(json.dumps({"file_name": n, "text": "a cat"}) + "\n" for n in NAMES).encode()


@pytest.fixture
def images(jpeg):
    """Members of a tar: six images in a folder."""

    def make(folder):
        return [(f"{folder}/{name}", jpeg(number)) for number, name in enumerate(NAMES)]

    return make


@pytest.mark.parametrize(
    ("texts", "how"),
    [
        ([("captions.txt", LINES)], "the names in captions.txt"),
        ([("captions.csv", b"image,caption\n" + LINES.replace(b"\t", b","))], "captions.csv"),
        ([("in/metadata.jsonl", ROWS)], "the names in in/metadata.jsonl"),
        ([("captions.json", b"[" + ROWS.strip().replace(b"\n", b",") + b"]")], "captions.json"),
        (
            [(f"captions/{number}.txt", b"a cat") for number in range(6)],
            "their names in another folder (in/0 and captions/0)",
        ),
    ],
)
def test_a_folder_in_a_tar_is_refused_with_the_command_that_unpacks_it(
    tmp_path, make_tar, images, texts, how
):
    path = make_tar(tmp_path / "x.tar", [*images("in"), *texts])
    with pytest.raises(PackError, match=r"x\.tar: the texts of this tar belong to") as error:
        pack_dataset(path, tmp_path / "out")
    assert f"{how}, which tars do not say; unpack it with `mkdir" in str(error.value)
    subprocess.run(str(error.value).split("`")[1], shell=True, check=True)
    raw = tmp_path / "x"
    assert str(error.value).endswith(f"and give {raw}")
    report = pack_dataset(raw, tmp_path / "out")
    assert (report.samples, report.teaching.with_text) == (6, 6)
