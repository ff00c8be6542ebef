"""Files of a folder beside the packed data are counted and named."""

import pytest

from datapipe import index_shards, make_loader, pack_dataset
from datapipe.pack.recognition import unused_files

from .chats import turns

TURNS = turns("What?", "A cat")


@pytest.fixture
def raw(tmp_path, put):
    """Twenty images in a folder, of which records name ten, by odd paths too."""
    names = [f"images/{n}.jpg" for n in range(8)] + ["./images/8.jpg", "images/../images//9.jpg"]
    records = [{"image": name, "conversations": TURNS} for name in names]
    images = {f"images/{number}.jpg": number for number in range(20)}
    return put(tmp_path / "raw", images | {"llava.json": records})


def notes(raw, out, **options):
    report = pack_dataset(raw, out, **options)
    return report, list(report.notes)


def test_other_files_are_said_by_what_they_are(raw, tmp_path, put):
    for number in range(10, 20):
        (raw / "images" / f"{number}.jpg").unlink()
    others = ("README.md", "images/3.txt", "later/b.jsonl", "film.mp4", "x.zip", "y.unknown")
    put(raw, dict.fromkeys((*others, "llava.json.md5", ".hidden"), "A cat"))
    _, said = notes(raw, tmp_path / "out", format="llava")
    assert sorted(said) == [
        "left out: 1 file, archives, which were not looked into (x.zip)",
        "left out: 1 file, files of records that were not taken (later/b.jsonl)",
        "left out: 1 file, of no known kind (y.unknown)",
        "left out: 1 file, texts that the format llava does not read (images/3.txt)",
        "left out: 1 file, video, which is not packed (film.mp4)",
        "left out: 2 files, no data (README.md, llava.json.md5)",
    ]


def test_files_outside_of_tars_are_said(tmp_path, make_tar, jpeg, put):
    images = {f"{number:03d}.jpg": jpeg(number) for number in range(100)}
    texts = {f"{number:03d}.txt": b"a" for number in range(100)}
    make_tar(tmp_path / "raw" / "0.tar", sorted((images | texts).items()))
    raw = put(tmp_path / "raw", {"preview.jpg": 0, "LICENSE": "MIT"})
    report, said = notes(raw, tmp_path / "out")
    assert (report.samples, report.rejected) == (100, 0)
    assert sorted(said) == [
        "left out: 1 file, images outside of tars (preview.jpg)",
        "left out: 1 file, no data (LICENSE)",
    ]


def test_what_is_left_over_changes_no_byte_of_the_output(raw, tmp_path, contents):
    pack_dataset(raw, tmp_path / "one")
    (raw / "README.md").write_text("Photographs")
    pack_dataset(raw, tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert pack_dataset(raw, tmp_path / "one").finished_before
    assert notes(raw, tmp_path / "three", limit=3)[1] == []  # the records not read may name all


# --- one spelling of each path --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "image_root"),
    [
        ("raw", None),
        ("./raw", "raw"),
        ("raw/../raw", "link"),
        ("link", "raw"),
        ("{absolute}", "link"),
    ],
)
def test_images_that_no_record_names_are_counted_however_the_folder_is_given(
    raw, tmp_path, monkeypatch, given, image_root
):
    (tmp_path / "link").symlink_to(raw)
    monkeypatch.chdir(tmp_path)
    report, said = notes(given.format(absolute=raw), tmp_path / "out", image_root=image_root)
    assert (report.samples, report.rejected, report.left_out) == (10, 0, 10)
    assert said[-1] == (
        "left out: 10 files, images that no record names (images/10.jpg, images/11.jpg, "
        "images/12.jpg, images/13.jpg, images/14.jpg and 5 more)"
    )


def test_many_records_are_weighed_alike_in_a_relative_folder(tmp_path, raw, monkeypatch, put):
    numbers = range(210)  # more than are looked for
    put(raw, {f"images/{number}.jpg": number for number in numbers})
    put(raw, {f"images/{number}.txt": "A cat" for number in numbers})
    paths = [str(raw / "images" / f"{number}.jpg") for number in numbers]
    put(raw, {"llava.json": [{"image": path, "conversations": TURNS} for path in paths]})
    monkeypatch.chdir(tmp_path)
    report, _ = notes("raw", tmp_path / "out")
    assert report.teaching.turns == {"user": 210, "assistant": 210}


def test_a_link_to_the_images_elsewhere_is_one_folder_by_either_path(raw, tmp_path, put):
    elsewhere = (raw / "images").rename(tmp_path / "elsewhere")
    (raw / "images").symlink_to(elsewhere)
    paths = [str(elsewhere / f"{number}.jpg") for number in range(10)]
    put(raw, {"llava.json": [{"image": path, "conversations": TURNS} for path in paths]})
    report, _ = notes(raw, tmp_path / "out")
    assert (report.samples, report.left_out) == (10, 10)


# --- what datapipe wrote itself -------------------------------------------------------------------


@pytest.mark.parametrize("loose", [0, 9])
def test_the_index_of_tars_is_passed_over(tmp_path, make_tar, put, jpeg, rejects, loose):
    tars = tmp_path / "tars"
    for shard in ("0.tar", "below/1.tar"):
        make_tar(tars / shard, [("0.jpg", jpeg(0)), ("0.txt", b"a cat")])
    index_shards(tars)
    list(make_loader(tars, batch_size=1, num_workers=0))
    assert (tars / "below" / "1.index.parquet").exists()
    assert (tars / "columns").is_dir()
    put(tars, {f"{number}.jpg": number for number in range(loose)})
    options = {"format": "folder", "max_rejects": 2} if loose else {}
    report, said = notes(tars, tmp_path / "out", **options)
    assert (report.samples, report.left_out, said) == (loose or 2, 0, [])
    rejected = [reject["source"] for reject in rejects(tmp_path / "out")]
    assert rejected == (["0.tar", "below/1.tar"] if loose else [])


def test_files_of_the_same_names_that_someone_else_wrote_are_said(tmp_path, make_tar, jpeg, put):
    make_tar(tmp_path / "raw" / "0.tar", [("0.jpg", jpeg(0)), ("0.txt", b"a cat")])
    names = ("dataset.json", "rejects.jsonl", "columns/a.json", "1.index.parquet")
    raw = put(tmp_path / "raw", dict.fromkeys(names, "{}"))
    report, _ = notes(raw, tmp_path / "out", format="webdataset")
    assert report.left_out == 4


# --- links that lead out of the folder and back ---------------------------------------------------


def test_a_link_to_a_folder_above_is_named_and_not_followed(raw, tmp_path, jpeg):
    (tmp_path / "beside.jpg").write_bytes(jpeg(0))
    (tmp_path / "beside.txt").write_text("no data of this folder")
    (raw / "up").symlink_to(tmp_path)
    (raw / "images" / "self").symlink_to(raw)
    _, said = notes(raw, tmp_path / "out", format="llava")
    assert said[1] == (
        "left out: 2 files, links to a folder above them, not followed (images/self, up)"
    )
    assert not any("beside" in line for line in said)


def test_of_very_many_files_the_first_are_compared(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(unused_files, "MOST_FILES", 12)
    _, said = notes(raw, tmp_path / "out")
    assert said[0].startswith("only the first 12 files of ")
