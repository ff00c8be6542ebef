"""Captions as one object of images: by file name or stem, one caption or several."""

import json

import pytest

from datapipe import pack_dataset
from datapipe.pack.input.raw_sample import ReadOptions, Reject
from datapipe.pack.readers.caption_files import CAPTION_DICT as READER

from .reading import choose_reader, read_all, recognises

NAMES = ["000123.jpg", "000124.jpg", "sub/a.png"]


@pytest.fixture
def make_dict(tmp_path, jpeg, encode):
    """Writes captions and the three images."""

    def make(captions, name="captions.json", folder="images", **dump):
        raw = tmp_path / "raw"
        for number, image in enumerate(NAMES):
            path = raw / folder / image
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(number) if number < 2 else encode(kind="PNG"))
        (raw / name).write_text(json.dumps(captions, **dump), encoding="utf-8")
        return raw

    return make


def read(raw, **options):
    return list(read_all(READER, raw, ReadOptions(**options)))


@pytest.mark.parametrize("dump", [{}, {"indent": 2}, {"ensure_ascii": False}])
def test_lists_of_captions_by_file_name(tmp_path, make_dict, members, jpeg, dump):
    raw = make_dict(
        {NAMES[0]: ["Ein großer Hund", "A pup"], NAMES[2]: "A cat", NAMES[1]: []}, **dump
    )
    assert choose_reader(raw) is choose_reader(raw / "captions.json") is READER
    report = pack_dataset(raw, tmp_path / "out", max_rejects=1)
    assert (report.samples, report.rejected) == (3, 1)
    first, second, third = members(tmp_path / "out").values()
    assert first == {"jpg": jpeg(0), "txt": "Ein großer Hund".encode()}
    assert second == {"jpg": jpeg(0), "txt": b"A pup"}
    assert (third.keys(), third["txt"]) == ({"png", "txt"}, b"A cat")


def test_stems_are_completed_with_what_lies_there(make_dict):
    raw = make_dict({"000123": ["A dog"], "sub/a": ["A cat"], "000124": ["A cow"]})
    assert choose_reader(raw) is READER
    names = [sample.images[0].blob.name for sample in read(raw)]
    assert names == ["000123.jpg", "sub/a.png", "000124.jpg"]


def test_an_object_with_a_caption_keeps_its_other_fields(make_dict):
    raw = make_dict(
        {"000123": {"caption": "A dog", "tags": "dog, grass"}, "000124": {"caption": "b"}}
    )
    samples = read(raw, key_from="tags")
    assert samples[0].caption == "A dog"
    assert samples[0].record == {"image": "000123", "caption": "A dog", "tags": "dog, grass"}
    assert samples[0].key == "dog, grass"
    assert isinstance(samples[1], Reject)  # it has no tags


@pytest.mark.parametrize(
    "captions",
    [
        {},
        {"name": "a dataset", "license": "MIT"},
        {"0.jpg": 3, "1.jpg": 5},
        {"0": {"image": "0.jpg"}},
        {"000123": "A dog", "license": "MIT"},
        [{"000123.jpg": "A dog"}],
        {"n": 1, "data": [{"image": "0.jpg"}]},
        {"image": "000123.jpg", "caption": "A dog"},
    ],
)
def test_other_objects_are_no_captions(make_dict, captions):
    assert not recognises(READER, make_dict(captions, "info.json"), ReadOptions())


def test_a_value_that_is_no_caption_and_a_missing_image_are_rejected(tmp_path, make_dict, rejects):
    many = {f"{number}.jpg": "x" for number in range(20)}
    raw = make_dict({NAMES[0]: "A dog", **many, NAMES[1]: 5})
    report = pack_dataset(raw, tmp_path / "out", max_rejects=21)
    assert (report.samples, report.rejected) == (1, 21)
    lines = rejects(tmp_path / "out")
    assert (lines[0]["source"], lines[0]["reason"]) == ("captions.json#0.jpg", "file is missing")
    assert lines[-1]["reason"].startswith("value is a int, not a caption")
