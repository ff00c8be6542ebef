"""Folders of masks beside folders of images: whose the texts are."""

import pytest

from datapipe import pack_dataset


@pytest.mark.parametrize("masks", ["masks", "depth", "annotated"])
def test_texts_belong_to_the_images_and_not_to_their_masks(
    tmp_path, jpeg, encode, members, rejects, masks
):
    for number in range(4):
        for folder, name, data in (
            ("images", f"{number}.jpg", jpeg(number)),
            (masks, f"{number}.png", encode(kind="PNG")),
            ("texts", f"{number}.txt", f"words {number}".encode()),
        ):
            (tmp_path / "raw" / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / "raw" / folder / name).write_bytes(data)
    (tmp_path / "raw" / "texts" / "9.txt").write_bytes(b"of no image")
    report = pack_dataset(tmp_path / "raw", tmp_path / "out", workers=1)
    assert (report.samples, report.teaching.with_text) == (8, 4)
    packed = members(tmp_path / "out").values()
    assert sorted(sample["txt"] for sample in packed if "jpg" in sample) == [
        f"words {number}".encode() for number in range(4)
    ]
    said = f"images of {masks}/ have no text: those of texts/* belong to images of the same names"
    assert any(said in note for note in report.notes)
    assert [reject["source"] for reject in rejects(tmp_path / "out")] == ["texts/9.txt"]


def test_folders_of_images_of_other_names_share_a_folder_of_texts(tmp_path, jpeg):
    for number in range(4):
        for folder, name, data in (
            ("images", f"{number}.jpg", jpeg(number)),
            ("more", f"1{number}.jpg", jpeg(number)),
            ("texts", f"{number}.txt", b"words"),
            ("texts", f"1{number}.txt", b"words"),
        ):
            (tmp_path / "raw" / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / "raw" / folder / name).write_bytes(data)
    report = pack_dataset(tmp_path / "raw", tmp_path / "out", workers=1)
    assert (report.samples, report.teaching.with_text) == (8, 8)


def test_files_that_ignore_names_are_left_out_and_counted(tmp_path, jpeg, encode, rejects):
    raw = tmp_path / "raw"
    (raw / "masks").mkdir(parents=True)
    for number in range(3):
        (raw / f"{number}.jpg").write_bytes(jpeg(number))
        (raw / f"{number}.txt").write_bytes(b"words")
        (raw / f"{number}.mp4").write_bytes(b"a video")
        (raw / "masks" / f"{number}.png").write_bytes(encode(kind="PNG"))
    report = pack_dataset(raw, tmp_path / "out", ignore=["*.MP4", "masks/*"], workers=1)
    assert (report.samples, rejects(tmp_path / "out")) == (3, [])
    assert report.notes == (
        "left out: 3 files, which --ignore '*.MP4' names (0.mp4, 1.mp4, 2.mp4)",
        "left out: 3 files, which --ignore 'masks/*' names (masks/0.png, masks/1.png, masks/2.png)",
    )
