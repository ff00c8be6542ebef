"""A survey lists and looks once, and a reading of it is opened once."""

import os

import pytest

from datapipe.pack.input import survey as survey_module
from datapipe.pack.input.raw_sample import RawSample, ReadOptions
from datapipe.pack.input.survey import Survey
from datapipe.pack.notes import Notes
from datapipe.pack.readers import RawReading


def write(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names_of(survey):
    return [(survey.below(listing.folder), *listing.files) for listing in survey.walk()]


def test_a_survey_stays_what_it_was(tmp_path):
    write(tmp_path, "b.jpg", "a.jpg", "c/d.txt", ".hidden")
    survey = Survey(tmp_path)
    found = [("", "a.jpg", "b.jpg"), ("c", "d.txt")]
    assert names_of(survey) == found
    (tmp_path / "b.jpg").unlink()
    write(tmp_path, "c/later.txt")
    assert names_of(survey) == found
    assert [[listing.folder for listing in level] for level in survey.levels()] == [
        [str(tmp_path)],
        [f"{tmp_path}/c"],
    ]


def test_a_tree_of_too_many_names_is_listed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(survey_module, "_KEPT_NAMES", 4)
    write(tmp_path, "a.jpg", "c/1.txt", "c/2.txt")
    survey = Survey(tmp_path)
    assert names_of(survey) == [("", "a.jpg"), ("c", "1.txt", "2.txt")]
    write(tmp_path, "b.jpg", "c/3.txt")
    assert names_of(survey) == [("", "a.jpg"), ("c", "1.txt", "2.txt", "3.txt")]


def test_a_file_is_looked_at_once(tmp_path):
    write(tmp_path, "a.json")
    survey = Survey(tmp_path)
    looked = []

    def size(path):
        looked.append(path)
        return os.path.getsize(path)

    assert [survey.look(size, tmp_path / "a.json") for _ in range(3)] == [0, 0, 0]
    assert looked == [tmp_path / "a.json"]


@pytest.mark.parametrize("walk", ["walk", "levels"])
def test_links_to_folders_above_are_not_followed(tmp_path, walk):
    write(tmp_path, "raw/a.jpg", "raw/c/d.txt")
    (tmp_path / "raw/c/up").symlink_to(tmp_path)
    (tmp_path / "raw/c/again").symlink_to(tmp_path / "raw")
    survey = Survey(tmp_path / "raw")
    found = list(survey.walk())
    if walk == "levels":
        found = [listing for level in survey.levels() for listing in level]
    assert [listing.folder for listing in found] == [f"{survey.raw}", f"{survey.raw}/c"]
    back: list[str] = []
    list(survey.walk(back))
    assert sorted(back) == [f"{survey.raw}/c/again", f"{survey.raw}/c/up"]


def test_records_are_the_files_of_a_folder_that_are_no_sidecars(tmp_path):
    names = ["a.jpg", "a.json", "b.jsonl", "c.csv.gz", "d.tar", "d.index.parquet", "notes.txt"]
    write(tmp_path, *names)
    (listing,) = Survey(tmp_path).walk()
    assert listing.records == ["b.jsonl", "c.csv.gz"]
    assert list(listing.images) == ["a.jpg"]


@pytest.mark.parametrize("kind", ["file", "folder", "list", "nothing"])
def test_a_survey_says_what_the_path_is(tmp_path, kind):
    write(tmp_path, "file")
    name = {"folder": "", "list": "shard-{0..3}.tar"}.get(kind, kind)
    survey = Survey(tmp_path / name)
    said = {"file": survey.is_file, "folder": survey.is_folder, "list": survey.is_list}
    assert [key for key, value in said.items() if value] == ([kind] if kind in said else [])


class Opened:
    """Reader that counts how often it is opened."""

    name, summary, fallback = "opened", "", False
    takes: frozenset[str] = frozenset()

    def __init__(self):
        self.times = 0

    def recognises(self, survey, options):
        return True

    def open(self, survey, options):
        self.times += 1
        options.notes.decide("opened")
        return ["1", "2"]

    def estimate(self, source, options):
        options.notes.decide("estimated")
        return len(source)

    def read(self, source, options):
        options.notes.decide("read")
        return map(RawSample, source)


def test_a_reading_is_opened_once_and_every_pass_has_its_notes(tmp_path):
    reader = Opened()
    reading = RawReading(survey=Survey(tmp_path), reader=reader, options=ReadOptions())
    assert reading.estimate() == 2
    for _ in range(2):
        notes = Notes()
        assert [sample.source for sample in reading.inputs(notes)] == ["1", "2"]
        assert notes.lines() == ["opened", "read"]
    assert reader.times == 1
