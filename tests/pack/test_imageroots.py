"""Folders of the images of records: found if one folder holds them, asked about if several do."""

import shlex
import shutil
import zipfile
from pathlib import Path

import pytest

from datapipe import pack_dataset
from datapipe.errors import PackError
from datapipe.index.manifest import read_manifest
from datapipe.pack.notes import Notes

from .cases import cases
from .chats import llava
from .record_files import open_, write

NAMES = [f"{number:04d}.jpg" for number in range(60)]


def touch(folder, names=NAMES):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def opened(raw, **options):
    notes = Notes()
    return open_(raw, notes=notes, **options), notes.lines()


def rows(path, names=NAMES, prefix=""):
    return write(path, [{"a": prefix + name} for name in names])


@pytest.mark.parametrize(
    ("give", "file", "place", "said"), cases("folders that hold the images of records")
)
def test_the_one_folder_that_holds_the_images_is_taken_and_said(tmp_path, give, file, place, said):
    rows(tmp_path / "raw" / file)
    touch(tmp_path / "raw" / place)
    records, notes = opened(tmp_path / "raw" / give)
    assert records.images.folders == (tmp_path / "raw" / place,)
    assert notes == [f"images start in {said} (found; --image-root says otherwise)"]


@pytest.mark.parametrize("place", ["", "images", "imgs", "train2017", "images/train2017"])
@pytest.mark.parametrize("levels", [1, 2])
def test_two_levels_above_the_records_are_looked_into(tmp_path, place, levels):
    path = rows(tmp_path.joinpath("top", *"ab"[:levels]) / "captions_train2017.jsonl")
    touch(tmp_path / "top" / place)
    assert opened(path)[0].images.folders == (tmp_path / "top" / place,)


def test_a_folder_that_is_three_levels_above_or_a_neighbour_is_another_dataset(tmp_path):
    path = rows(tmp_path / "a" / "b" / "c" / "llava.json")
    touch(tmp_path / "images")
    touch(tmp_path / "a" / "other" / "photographs")
    records, said = opened(path)
    assert (records.images.folders, said) == ((path.parent,), [])


@pytest.mark.parametrize("prefix", ["", "coco/train/"])
def test_images_further_away_are_said_with_the_image_root_that_works(tmp_path, prefix):
    path = rows(tmp_path / "raw" / "llava.json", prefix=prefix)
    touch(tmp_path / "raw" / "any" / "name" / "at all")
    with pytest.raises(PackError, match=r"the first is .*; give --image-root") as caught:
        opened(path)
    root = shlex.split(str(caught.value).rpartition("--image-root ")[2].partition(", where")[0])
    records, _ = opened(path, image_root=Path(*root))
    assert records.images.has(f"{prefix}{NAMES[0]}")


def test_several_folders_that_hold_the_images_are_listed(tmp_path):
    rows(tmp_path / "llava.json")
    touch(tmp_path / "images")
    touch(tmp_path / "pics", NAMES[:40])
    with pytest.raises(PackError, match="several folders hold images of the same") as caught:
        opened(tmp_path)
    assert f"--image-root {tmp_path}/images  60 of the first 60" in str(caught.value)
    assert f"--image-root {tmp_path}/pics  40 of the first 60" in str(caught.value)
    assert opened(tmp_path, image_root=tmp_path / "images")[1] == []


def test_folders_of_which_each_holds_other_images_are_used_together(tmp_path):
    rows(tmp_path / "llava.json")
    touch(tmp_path / "train", NAMES[:20])
    assert opened(tmp_path)[0].images.folders == (tmp_path / "train",)
    touch(tmp_path / "val", NAMES[20:])
    images = opened(tmp_path)[0].images
    assert images.folders == (tmp_path / "val", tmp_path / "train")
    assert all(map(images.has, NAMES))


@pytest.mark.parametrize("prefix", ["coco/", "/home/author/data/coco/", "../data/"])
@pytest.mark.parametrize("place", ["", "here/"])
def test_a_prefix_that_is_not_here_is_left_out(tmp_path, prefix, place):
    rows(tmp_path / "raw" / "llava.json", prefix=f"{prefix}train2017/")
    touch(tmp_path / "raw" / place / "train2017")
    records, (said,) = opened(tmp_path / "raw")
    assert f"without the {prefix!r} that their paths begin with (found;" in said
    assert records.images.folders == (tmp_path / "raw" / place,)


def test_a_prefix_is_left_out_only_if_every_image_is_there_then(tmp_path):
    rows(tmp_path / "llava.json", prefix="coco/train2017/")
    touch(tmp_path / "train2017", NAMES[:-1])
    with pytest.raises(PackError, match=r"--image-root .*, where 59 of the first 60 are"):
        opened(tmp_path)
    records, (said,) = opened(tmp_path, image_root=tmp_path)
    assert said.endswith(", without the 'coco/' that their paths begin with")
    assert records.images.folders == (tmp_path,)
    touch(tmp_path / "train2017")
    assert len(opened(tmp_path)[1]) == 1
    touch(tmp_path / "copy" / "train2017")
    with pytest.raises(PackError, match="several folders hold images"):
        opened(tmp_path)


def test_a_sentence_that_ends_with_a_file_is_no_image(tmp_path):
    texts = [f"What do you see in the picture called {name}" for name in NAMES]
    write(tmp_path / "a.jsonl", [{"a": n, "b": t} for n, t in zip(NAMES, texts, strict=True)])
    touch(tmp_path / "images")
    assert opened(tmp_path)[0].images.folders == (tmp_path / "images",)


def test_a_wrong_image_root_says_where_it_looked_and_where_the_images_are(tmp_path):
    rows(tmp_path / "llava.json")
    touch(tmp_path / "images")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PackError) as caught:
        opened(tmp_path, image_root=tmp_path / "empty")
    said = str(caught.value)
    assert f"none of the first images is there (looked for {tmp_path}/empty/0000.jpg)" in said
    assert f"give --image-root {tmp_path}/images, where 60 of the first 60 are" in said


def make_archive(path, inside):
    """An archive of empty files, in a folder or not."""
    folder = path.parent / "archived"
    touch(folder / inside)
    kind = "zip" if path.suffix == ".zip" else "gztar"
    shutil.make_archive(str(path).removesuffix(".zip").removesuffix(".tar.gz"), kind, folder)
    shutil.rmtree(folder)


@pytest.mark.parametrize("archive", ["images.zip", "train2017.tar.gz", "x.zip", "x.tar.gz"])
@pytest.mark.parametrize("place", [".", ".."])
def test_an_archive_that_may_hold_the_images_is_to_be_unpacked(tmp_path, archive, place):
    path = rows(tmp_path / "annotations" / "llava.json")
    make_archive(tmp_path / "annotations" / place / archive, "images")
    with pytest.raises(PackError, match=f"unpack {archive} first, with `"):
        opened(path)


def test_an_archive_of_something_else_is_passed_over(tmp_path):
    path = rows(tmp_path / "llava.json")
    with zipfile.ZipFile(tmp_path / "evaluation.zip", "w") as archive:
        archive.writestr("score.py", b"")
    assert opened(path)[1] == []


def test_what_was_found_stands_in_the_manifest_and_changes_no_command(tmp_path, put):
    for name, count in (("raw", 3), ("more", 4)):
        images = {f"train2017/{NAMES[number]}": number for number in range(count)}
        records = [llava("What?", image=f"coco/{image}") for image in images]
        put(tmp_path / name / "images", images)
        put(tmp_path / name, {"llava.json": records})
    raw, more, out = (tmp_path / name for name in ("raw", "more", "out"))
    report = pack_dataset(raw, out)
    assert report.samples == 3
    assert [line for line in report.notes if line.startswith("images start in images, without")]
    (part,) = read_manifest(out).parts
    assert part.options["found_image_root"] == "images"
    assert part.options["found_image_prefix"] == "coco/"
    before = (out / "dataset.json").read_bytes()
    assert pack_dataset(raw, out).finished_before
    pack_dataset(raw, tmp_path / "again")
    assert (tmp_path / "again" / "dataset.json").read_bytes() == before
    assert pack_dataset(more, out, append=True).samples == 7
    assert pack_dataset(more, out, append=True).finished_before
    assert pack_dataset(raw, tmp_path / "given", image_root=raw / "images").samples == 3
