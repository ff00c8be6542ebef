"""Captions in one JSON file: an object of images, Karpathy's splits."""

import json

import pytest

from datapipe import make_loader, pack_dataset
from datapipe.pack.input.raw_sample import RawSample, ReadOptions, Reject
from datapipe.pack.readers import all_readers

from .cases import values
from .reading import choose_reader, estimate, recognises
from .reading import read as read_inputs


@pytest.fixture
def make(raw, put, encode):
    """Writes a JSON file, and images, each as JPEG or PNG."""

    def make(name, content, images, **dump):
        files = {i: encode(kind="PNG") if "png" in i else n for n, i in enumerate(images)}
        return put(raw, files | {name: json.dumps(content, **dump)})

    return make


def read(name, raw, **options):
    return read_inputs(all_readers()[name], raw, **options)


def rejected(taken):
    return [(one.source, one.reason) for one in taken if isinstance(one, Reject)]


# --- an object of images ------------------------------------------------------------------------

NAMES = ["000123.jpg", "000124.jpg", "sub/a.png"]


@pytest.fixture
def make_dict(make):
    return lambda captions, **dump: make(
        "captions.json", captions, [f"images/{image}" for image in NAMES], **dump
    )


@pytest.mark.parametrize("dump", [{}, {"indent": 2}, {"ensure_ascii": False}])
def test_lists_of_captions_by_file_name(tmp_path, make_dict, members, jpeg, dump):
    raw = make_dict(
        {NAMES[0]: ["Ein großer Hund", "A pup"], NAMES[2]: "A cat", NAMES[1]: []}, **dump
    )
    assert choose_reader(raw).name == choose_reader(raw / "captions.json").name == "captiondict"
    report = pack_dataset(raw, tmp_path / "out", max_rejects=1)
    assert (report.samples, report.rejected) == (3, 1)
    first, second, third = members(tmp_path / "out").values()
    assert first == {"jpg": jpeg(0), "txt": "Ein großer Hund".encode()}
    assert second == {"jpg": jpeg(0), "txt": b"A pup"}
    assert (third.keys(), third["txt"]) == ({"png", "txt"}, b"A cat")


@pytest.mark.parametrize("captions", values("objects that are no captions"), ids=str)
def test_other_objects_are_no_captions(make_dict, captions):
    raw = make_dict(captions)
    assert not recognises(all_readers()["captiondict"], raw, ReadOptions())


def test_a_value_that_is_no_caption_and_a_missing_image_are_rejected(make_dict):
    many = {f"{number}.jpg": "x" for number in range(20)}
    taken = read("captiondict", make_dict({NAMES[0]: "A dog", **many, NAMES[1]: 5}))
    assert sum(isinstance(one, RawSample) for one in taken) == 21
    (line,) = rejected(taken)
    assert line[1].startswith("value is a int, not a caption")


# --- Karpathy's dataset.json --------------------------------------------------------------------


def entry(name, split, *texts):
    sentences = [{"tokens": text.lower().split(), "raw": text, "imgid": 0} for text in texts]
    return {"imgid": 0, "sentences": sentences, "split": split, "filename": name}


IMAGES = [
    entry("2513260012.jpg", "train", "A black dog is running .", "Black dog chasing brown dog"),
    entry("1000092795.jpg", "val", "Two men in green shirts standing in a yard."),
    entry("101654506.jpg", "test", "A man climbs ."),
]


def test_every_sentence_is_a_sample_and_a_loader_takes_a_split(tmp_path, make, members):
    names = [f"images/{image['filename']}" for image in IMAGES]
    raw = make("dataset.json", {"images": IMAGES, "dataset": "flickr30k"}, names)
    assert choose_reader(raw).name == choose_reader(raw / "dataset.json").name == "karpathy"
    for mode, samples in (("all", 4), ("join", 3)):
        assert estimate(all_readers()["karpathy"], raw, ReadOptions(captions=mode)) == samples
    report = pack_dataset(raw, tmp_path / "out")
    assert (report.samples, report.rejected) == (4, 0)
    first, second, third, _ = members(tmp_path / "out").values()
    assert first["txt"] == b"A black dog is running ."
    assert second["txt"] == b"Black dog chasing brown dog"
    assert second["jpg"] == first["jpg"] != third["jpg"]
    assert json.loads(first["json"]) == IMAGES[0]
    where = 'source.startswith("dataset.json#train/")'
    note = next(note for note in report.notes if "train 1, val 1, test 1" in note)
    assert f"where='{where}'" in note
    loader = make_loader(tmp_path / "out", batch_size=2, where=where, shuffle=False)
    assert next(iter(loader))["text"] == ["A black dog is running .", "Black dog chasing brown dog"]
