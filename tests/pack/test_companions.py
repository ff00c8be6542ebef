"""Folders of masks beside folders of images: whose the texts are."""

import pytest

from datapipe import pack_dataset


@pytest.mark.parametrize("masks", ["masks", "depth", "annotated"])
def test_texts_belong_to_the_images_and_not_to_their_masks(
    tmp_path, put, encode, members, rejects, masks
):
    put(tmp_path / "raw", {"texts/9.txt": "of no image"})
    for number in range(4):
        images = {f"images/{number}.jpg": number, f"{masks}/{number}.png": encode(kind="PNG")}
        put(tmp_path / "raw", images | {f"texts/{number}.txt": f"words {number}"})
    report = pack_dataset(tmp_path / "raw", tmp_path / "out", workers=1)
    assert (report.samples, report.teaching.with_text) == (8, 4)
    packed = members(tmp_path / "out").values()
    assert sorted(sample["txt"] for sample in packed if "jpg" in sample) == [
        f"words {number}".encode() for number in range(4)
    ]
    said = f"images of {masks}/ have no text: those of texts/* belong to images of the same names"
    assert any(said in note for note in report.notes)
    assert [reject["source"] for reject in rejects(tmp_path / "out")] == ["texts/9.txt"]


def test_folders_of_images_of_other_names_share_a_folder_of_texts(tmp_path, put):
    for number in range(4):
        images = {f"images/{number}.jpg": number, f"more/1{number}.jpg": number}
        texts = dict.fromkeys((f"texts/{number}.txt", f"texts/1{number}.txt"), "words")
        put(tmp_path / "raw", images | texts)
    report = pack_dataset(tmp_path / "raw", tmp_path / "out", workers=1)
    assert (report.samples, report.teaching.with_text) == (8, 8)


def test_files_that_ignore_names_are_left_out_and_counted(tmp_path, put, encode, rejects):
    raw = tmp_path / "raw"
    for number in range(3):
        files = {f"{number}.jpg": number, f"{number}.txt": "words", f"{number}.mp4": "a video"}
        put(raw, files | {f"masks/{number}.png": encode(kind="PNG")})
    ignored = ["*.MP4", "*.txt", "masks/*"]
    report = pack_dataset(raw, tmp_path / "out", ignore=ignored, workers=1)
    assert (report.samples, rejects(tmp_path / "out")) == (3, [])
    assert report.teaching.without_text == 3
    names = "0.mp4, 1.mp4, 2.mp4", "0.txt, 1.txt, 2.txt", "masks/0.png, masks/1.png, masks/2.png"
    assert report.notes == tuple(
        f"left out: 3 files, which --ignore '{pattern}' names ({named})"
        for pattern, named in zip(ignored, names, strict=True)
    )
