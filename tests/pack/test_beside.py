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


def test_what_is_left_over_changes_no_byte_of_the_output(raw, tmp_path, contents):
    pack_dataset(raw, tmp_path / "one")
    (raw / "README.md").write_text("Photographs")
    pack_dataset(raw, tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert pack_dataset(raw, tmp_path / "one").finished_before
    report = pack_dataset(raw, tmp_path / "three", limit=3)
    assert report.notes == ()  # the records not read may name all


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
    out = "s3:"  # a folder, which looks like an address
    report = pack_dataset(given.format(absolute=raw), out, image_root=image_root)
    assert (report.samples, report.rejected, report.left_out) == (10, 0, 10)
    assert report.notes[-1] == (
        "left out: 10 files, images that no sample has (images/10.jpg, images/11.jpg, "
        "images/12.jpg, images/13.jpg, images/14.jpg and 5 more)"
    )


def test_many_records_are_weighed_alike_in_a_relative_folder(tmp_path, raw, monkeypatch, put):
    numbers = range(210)  # more than are looked for
    put(raw, {"images/{0..209}.jpg": 0, "images/{0..209}.txt": "A cat"})
    paths = [str(raw / "images" / f"{number}.jpg") for number in numbers]
    put(raw, {"llava.json": [{"image": path, "conversations": TURNS} for path in paths]})
    monkeypatch.chdir(tmp_path)
    report = pack_dataset("raw", tmp_path / "out")
    assert report.teaching.turns == {"user": 210, "assistant": 210}


def test_a_link_to_the_images_elsewhere_is_one_folder_by_either_path(raw, tmp_path, put):
    elsewhere = (raw / "images").rename(tmp_path / "elsewhere")
    (raw / "images").symlink_to(elsewhere)
    paths = [str(elsewhere / f"{number}.jpg") for number in range(10)]
    put(raw, {"llava.json": [{"image": path, "conversations": TURNS} for path in paths]})
    report = pack_dataset(raw, tmp_path / "out")
    assert (report.samples, report.left_out) == (10, 10)


# --- what datapipe wrote itself -------------------------------------------------------------------


@pytest.mark.parametrize("loose", [0, 9])
def test_the_index_of_tars_is_passed_over(tmp_path, make_tar, put, jpeg, rejects, loose):
    tars = tmp_path / "tars"
    for shard in ("0.tar", "below/1.tar"):
        make_tar(tars / shard, [("0.jpg", jpeg(0)), ("0.txt", b"a cat")])
    index_shards(tars)
    list(make_loader(tars, batch_size=1, num_workers=0, where="width > 0"))
    assert (tars / "below" / "1.index.parquet").exists()
    assert all((tars / derived).is_dir() for derived in ("columns", "where"))
    put(tars, {f"{number}.jpg": number for number in range(loose)})
    options = {"format": "folder", "max_rejects": 2} if loose else {}
    report = pack_dataset(tars, tmp_path / "out", **options)
    assert (report.samples, report.left_out, report.notes) == (loose or 2, 0, ())
    rejected = [reject["source"] for reject in rejects(tmp_path / "out")]
    assert rejected == (["0.tar", "below/1.tar"] if loose else [])


# --- links that lead out of the folder and back ---------------------------------------------------


def test_a_link_to_a_folder_above_is_named_and_not_followed(raw, tmp_path, jpeg):
    (tmp_path / "beside.jpg").write_bytes(jpeg(0))
    (tmp_path / "beside.txt").write_text("no data of this folder")
    (raw / "up").symlink_to(tmp_path)
    (raw / "images" / "self").symlink_to(raw)
    said = pack_dataset(raw, tmp_path / "out", format="llava").notes
    assert said[1] == (
        "left out: 2 files, links to a folder above them, not followed (images/self, up)"
    )
    assert not any("beside" in line for line in said)


def test_linked_folders_are_followed_and_circular_links_rejected(tmp_path, make_folder, rejects):
    one, two = (make_folder(tmp_path / "raw" / name, 1) for name in ("one", "two"))
    (one / "link").symlink_to(two)
    (two / "link").symlink_to(one)
    assert pack_dataset(tmp_path / "raw", tmp_path / "out", max_rejects=9).samples == 4
    sources = [line["source"] for line in rejects(tmp_path / "out")]
    assert sources == ["one/link/link", "two/link/link"]


def test_of_very_many_files_the_first_are_compared(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(unused_files, "MOST_FILES", 12)
    report = pack_dataset(raw, tmp_path / "out")
    assert report.notes[0].startswith("only the first 12 files of ")
