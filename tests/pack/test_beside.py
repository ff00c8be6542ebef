"""Files of a folder beside the packed data are counted and named."""

import pytest

from datapipe import PackError, index_shards, make_loader, pack_dataset
from datapipe.pack.readers import all_readers
from datapipe.pack.recognition import unused_files

from .chats import turns
from .reading import estimate

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


def test_folders_of_images_of_other_names_share_a_folder_of_texts(tmp_path, put):
    for number in range(4):
        images = {f"images/{number}.jpg": number, f"more/1{number}.jpg": number}
        texts = dict.fromkeys((f"texts/{number}.txt", f"texts/1{number}.txt"), "words")
        put(tmp_path / "raw", images | texts)
    put(tmp_path / "raw", {"texts/99.txt": "words of no image"})
    report = pack_dataset(tmp_path / "raw", tmp_path / "out", workers=1)
    assert (report.samples, report.teaching.with_text) == (8, 8)
    assert [reject.source for reject in report.examples] == ["texts/99.txt"]


def test_what_two_folders_of_images_leave_of_their_texts_is_rejected_once(tmp_path, put, rejects):
    images = {"left/0.jpg": 0, "left/1.jpg": 1, "right/5.jpg": 2, "right/6.jpg": 3}
    names = ("0.txt", "1.txt", "5.txt", "6.txt", "5.TXT", "5.pdf", "77.txt")
    put(tmp_path / "raw", images | {f"texts/{name}": name for name in names})
    report = pack_dataset(tmp_path / "raw", tmp_path / "out", workers=1, max_rejects=3)
    assert (report.samples, report.teaching.with_text) == (4, 4)
    assert {line["source"]: line["reason"] for line in rejects(tmp_path / "out")} == {
        "texts/5.pdf": "a document; only images and text are packed",
        "texts/5.txt": "another text of this kind has the same stem as this text",
        "texts/77.txt": "no image has the same stem as this text",
    }


def test_texts_are_found_in_folders_that_are_reached_later(tmp_path, put):
    texts = {f"captions/train/{n}.txt": "a" for n in range(2)} | {
        f"photos/text/1{n}.txt": "b" for n in range(2)
    }
    images = {f"images/train/{n}.jpg": n for n in range(2)} | {
        f"photos/train/1{n}.jpg": n for n in range(2)
    }
    put(tmp_path / "raw", images | texts)
    report = pack_dataset(tmp_path / "raw", tmp_path / "out", workers=1)
    assert (report.samples, report.teaching.with_text, report.rejected) == (4, 4, 0)


def test_several_folders_of_texts_are_asked_about_before_anything_is_packed(tmp_path, put):
    texts = {f"{folder}/{n}.txt": "TAN" for folder in ("box", "entities") for n in range(2)}
    put(tmp_path, {"img/0.jpg": 0, "img/1.jpg": 1} | texts)
    with pytest.raises(PackError, match="img holds images, and several folders"):
        estimate(all_readers()["folder"], tmp_path)
