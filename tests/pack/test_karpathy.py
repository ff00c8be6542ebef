"""Karpathy's dataset.json: every sentence as it was written, every split, images by filepath."""

import json

import pytest

from datapipe import make_loader, pack_dataset
from datapipe.pack.input.raw_sample import ReadOptions
from datapipe.pack.readers.caption_files import KARPATHY as READER

from .reading import choose_reader, estimate, read_all


def sentence(text, number):
    tokens = text.lower().rstrip(" .").split()
    return {"tokens": tokens, "raw": text, "imgid": 0, "sentid": number}


def entry(name, split, *texts, **more):
    return {
        "sentids": list(range(len(texts))),
        "imgid": 0,
        "sentences": [sentence(text, number) for number, text in enumerate(texts)],
        "split": split,
        "filename": name,
    } | more


IMAGES = [
    entry("2513260012.jpg", "train", "A black dog is running .", "Black dog chasing brown dog"),
    entry("1000092795.jpg", "val", "Two men in green shirts standing in a yard."),
    entry("101654506.jpg", "test", "A man climbs ."),
]


@pytest.fixture
def make_karpathy(tmp_path, jpeg):
    def make(images=IMAGES, name="dataset.json", folder="images", dataset="flickr30k"):
        raw = tmp_path / "raw"
        (raw / name).parent.mkdir(parents=True, exist_ok=True)
        (raw / name).write_text(json.dumps({"images": images, "dataset": dataset}))
        for number, image in enumerate(i for i in images if isinstance(i, dict)):
            if image.get("filename"):
                path = raw / folder / image.get("filepath", "") / image["filename"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(jpeg(number))
        return raw

    return make


def read(raw, **options):
    return list(read_all(READER, raw, ReadOptions(**options)))


def test_every_sentence_is_a_sample_and_a_loader_takes_a_split(tmp_path, make_karpathy, members):
    raw = make_karpathy()
    assert choose_reader(raw) is choose_reader(raw / "dataset.json") is READER
    report = pack_dataset(raw, tmp_path / "out")
    assert (report.samples, report.rejected) == (4, 0)
    first, second, third, _ = members(tmp_path / "out").values()
    assert first["txt"] == b"A black dog is running ."
    assert second["txt"] == b"Black dog chasing brown dog"
    assert second["jpg"] == first["jpg"] != third["jpg"]
    assert json.loads(first["json"]) == IMAGES[0]
    note = next(note for note in report.notes if "train 1, val 1, test 1" in note)
    assert "where='source.startswith(\"dataset.json#train/\")'" in note
    where = 'source.startswith("dataset.json#train/")'
    loader = make_loader(tmp_path / "out", batch_size=2, where=where, shuffle=False)
    assert next(iter(loader))["text"] == ["A black dog is running .", "Black dog chasing brown dog"]


def test_sentences_without_raw_are_made_of_their_words(make_karpathy):
    image = IMAGES[0] | {"sentences": [{"tokens": ["a", "dog"]}, {"raw": " "}, "A pup"]}
    assert [sample.caption for sample in read(make_karpathy([image]))] == ["a dog", "A pup"]


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ([1], "entry is a list, not an object"),
        ({"sentences": []}, "image has no `filename`"),
        (entry("x.jpg", "train") | {"sentences": [{"text": 1}]}, "`sentences` is no list of"),
        (entry("x.jpg", "train") | {"sentences": None}, "`sentences` is no list of"),
    ],
)
def test_an_image_that_makes_no_sense_is_rejected(make_karpathy, image, reason):
    *samples, line = read(make_karpathy([*IMAGES, image]))
    assert len(samples) == 4
    assert line.source == "dataset.json: images[3]"
    assert reason in line.reason


def test_the_estimate_is_the_number_of_samples(make_karpathy):
    raw = make_karpathy()
    assert estimate(READER, raw, ReadOptions()) == 4
    assert estimate(READER, raw, ReadOptions(captions="join")) == 3
