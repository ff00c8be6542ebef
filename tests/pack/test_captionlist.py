"""Captions in files: lists as text, whose every caption becomes a sample, and objects of JSON."""

import json

import pytest

from datapipe import PackError
from datapipe.pack.input.raw_sample import RawSample, ReadOptions, Reject
from datapipe.pack.readers import all_readers
from datapipe.pack.readers.caption_list import READER

from .cases import record_cases, values
from .reading import choose_reader, estimate, read, recognises

NAMES = ["1000268201_693b08cb0e.jpg", "1001773457_577c3a7d70.jpg", "1007320043_627395c3d8.jpg"]
TOKENS = "".join(f"{name}#0\tA dog runs over the grass .\n" for name in NAMES)


@pytest.fixture
def make_list(tmp_path, put):
    """Writes a list of captions, and images to a folder below."""

    def make(content, name="captions.txt", folder="Images"):
        images = {f"{folder}/{image}": number for number, image in enumerate(NAMES)}
        return put(tmp_path / "raw", images | {name: content})

    return make


def named(text):
    for number, name in enumerate(NAMES):
        text = text.replace(f"NAME{number}", name)
    return text


def pairs(raw, **options):
    """(name of the image, caption) of each sample, and the rejects."""
    taken = read(READER, raw, **options)
    samples = [t for t in taken if isinstance(t, RawSample)]
    return (
        [(sample.images[0].blob.name, sample.caption) for sample in samples],
        [(t.source, t.reason) for t in taken if isinstance(t, Reject)],
    )


@pytest.mark.parametrize(("name", "content"), record_cases("lists of captions"))
def test_lists_are_written_in_many_ways(make_list, name, content):
    raw = make_list(named(json.loads(content)), name)
    for given in (raw, raw / name):
        assert choose_reader(given) is READER
        assert pairs(given) == ([(NAMES[0], "A dog runs"), (NAMES[1], "A cat sits")], [])
    assert all(s.images[0].blob.read() for s in read(READER, raw))


def test_lines_of_an_image_need_not_follow_each_other(make_list):
    lines = [f"{name}#{number}\tcaption {number} of it\n" for number in range(3) for name in NAMES]
    raw = make_list("".join(lines))
    assert estimate(READER, raw) == 9
    expected = [(name, f"caption {number} of it") for name in NAMES for number in range(3)]
    assert pairs(raw)[0] == expected
    assert pairs(raw, captions="first")[0] == [(name, "caption 0 of it") for name in NAMES]
    assert [s.key for s in read(READER, raw, key_from="image")] == [name for name, _ in expected]


@pytest.mark.parametrize(
    "content", [*values("texts that list no captions"), TOKENS.encode("utf-16")]
)
def test_lists_of_names_labels_and_scores_are_no_captions(make_list, content):
    raw = make_list(named(content) if isinstance(content, str) else content, "list.txt")
    assert not recognises(READER, raw)
    with pytest.raises(PackError, match=r"no text file here lists captions"):
        pairs(raw)


def test_texts_beside_the_images_are_what_is_meant(make_list):
    raw = make_list(TOKENS, "all.txt")
    (raw / "Images" / NAMES[0]).with_suffix(".txt").write_text("A dog")
    assert not recognises(READER, raw)


# --- captions in one JSON file ------------------------------------------------------------------


@pytest.mark.parametrize("captions", values("objects that are no captions"), ids=str)
def test_other_objects_are_no_captions(raw, put, captions):
    images = {"images/000123.jpg": 0, "images/000124.jpg": 1, "images/sub/a.png": 2}
    put(raw, images | {"captions.json": captions})
    assert not recognises(all_readers()["captiondict"], raw)


def test_a_value_that_is_no_caption_is_rejected(raw, put):
    captions = {f"{number}.jpg": "A dog" for number in range(20)} | {"20.jpg": 5}
    put(raw, {"0.jpg": 0, "captions.json": captions})
    *samples, line = read(all_readers()["captiondict"], raw)
    assert len(samples) == 20
    assert line.reason.startswith("value is a int, not a caption")


@pytest.mark.parametrize(("mode", "samples"), [("all", 4), ("join", 2)])
def test_sentences_of_karpathys_splits_are_estimated(raw, put, mode, samples):
    said = [{"raw": "A dog runs ."}, {"raw": "A black dog ."}]
    images = [{"filename": f"{n}.jpg", "split": "train", "sentences": said} for n in range(2)]
    put(raw, {"0.jpg": 0, "1.jpg": 1, "dataset.json": {"images": images, "dataset": "flickr30k"}})
    assert estimate(all_readers()["karpathy"], raw, ReadOptions(captions=mode)) == samples
