"""Files of a folder beside the packed data are counted and named."""

import json

import pytest

from datapipe import pack_dataset
from datapipe.pack.recognition import unused_files

TURNS = [{"from": "human", "value": "What?"}, {"from": "gpt", "value": "A cat"}]


@pytest.fixture
def raw(tmp_path, jpeg):
    """Twenty images in a folder, of which records name ten, by odd paths too."""
    raw = tmp_path / "raw"
    (raw / "images").mkdir(parents=True)
    for number in range(20):
        (raw / "images" / f"{number}.jpg").write_bytes(jpeg(number))
    names = [f"images/{n}.jpg" for n in range(8)] + ["./images/8.jpg", "images/../images//9.jpg"]
    records = [{"image": name, "conversations": TURNS} for name in names]
    (raw / "llava.json").write_text(json.dumps(records))
    return raw


def notes(raw, out, **options):
    report = pack_dataset(raw, out, **options)
    return report, list(report.notes)


def test_images_that_no_record_names_are_counted(raw, tmp_path):
    report, said = notes(raw, tmp_path / "out")
    assert (report.samples, report.rejected, report.left_out) == (10, 0, 10)
    assert said == [
        "left out: 10 files, images that no record names (images/10.jpg, images/11.jpg, "
        "images/12.jpg, images/13.jpg, images/14.jpg and 5 more)"
    ]


def test_other_files_are_said_by_what_they_are(raw, tmp_path, jpeg):
    for number in range(10, 20):
        (raw / "images" / f"{number}.jpg").unlink()
    others = ("README.md", "images/3.txt", "later/b.jsonl", "film.mp4", "x.zip", "y.unknown")
    for name in (*others, "llava.json.md5", ".hidden"):
        (raw / name).parent.mkdir(exist_ok=True)
        (raw / name).write_text("A cat")
    _, said = notes(raw, tmp_path / "out", format="llava")
    assert sorted(said) == [
        "left out: 1 file, archives, which were not looked into (x.zip)",
        "left out: 1 file, files of records that were not taken (later/b.jsonl)",
        "left out: 1 file, of no known kind (y.unknown)",
        "left out: 1 file, texts that the format llava does not read (images/3.txt)",
        "left out: 1 file, video, which is not packed (film.mp4)",
        "left out: 2 files, no data (README.md, llava.json.md5)",
    ]


def test_of_very_many_files_the_first_are_compared(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(unused_files, "MOST_FILES", 12)
    _, said = notes(raw, tmp_path / "out")
    assert said[0].startswith("only the first 12 files of ")


def test_a_limit_leaves_nothing_over_that_could_be_named(raw, tmp_path):
    assert notes(raw, tmp_path / "out", limit=3)[1] == []


def test_files_outside_of_tars_are_said(tmp_path, make_tar, jpeg):
    raw = tmp_path / "raw"
    members = [(f"{n:03d}.{ext}", jpeg(n) if ext == "jpg" else b"a") for n in range(100)
               for ext in ("jpg", "txt")]  # fmt: skip
    make_tar(raw / "0.tar", members)
    (raw / "preview.jpg").write_bytes(jpeg(0))
    (raw / "LICENSE").write_text("MIT")
    report, said = notes(raw, tmp_path / "out")
    assert (report.samples, report.rejected) == (100, 0)
    assert sorted(said) == [
        "left out: 1 file, images outside of tars (preview.jpg)",
        "left out: 1 file, no data (LICENSE)",
    ]


def test_what_is_left_over_changes_no_byte_of_the_output(raw, tmp_path):
    pack_dataset(raw, tmp_path / "one")
    (raw / "README.md").write_text("Photographs")
    pack_dataset(raw, tmp_path / "two")
    names = sorted(p.name for p in (tmp_path / "one").iterdir() if p.is_file())
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert pack_dataset(raw, tmp_path / "one").finished_before
