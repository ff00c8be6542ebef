"""Captions in one JSON file: an object of images, Karpathy's splits, TextCaps."""

import json

import pytest

from datapipe import make_loader, pack_dataset
from datapipe.pack.input.raw_sample import RawSample, ReadOptions, Reject
from datapipe.pack.readers import all_readers

from .cases import values
from .layouts.table import Has
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


def test_stems_are_completed_and_an_object_with_a_caption_keeps_its_other_fields(make_dict):
    raw = make_dict({"000123": {"caption": "A dog", "tags": "dog, grass"}, "sub/a": ["A cat"]})
    first, second = read("captiondict", raw)
    assert [s.images[0].blob.name for s in (first, second)] == ["000123.jpg", "sub/a.png"]
    assert first.record == {"image": "000123", "caption": "A dog", "tags": "dog, grass"}
    first, second = read("captiondict", raw, key_from="tags")
    assert (first.caption, first.key) == ("A dog", "dog, grass")
    assert isinstance(second, Reject)  # it has no tags


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


@pytest.fixture
def make_karpathy(make):
    def make_karpathy(images=IMAGES):
        names = [f"images/{image['filename']}" for image in images if "filename" in image]
        return make("dataset.json", {"images": images, "dataset": "flickr30k"}, names)

    return make_karpathy


def test_every_sentence_is_a_sample_and_a_loader_takes_a_split(tmp_path, make_karpathy, members):
    raw = make_karpathy()
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


def test_sentences_without_raw_are_made_of_their_words(make_karpathy):
    image = IMAGES[0] | {"sentences": [{"tokens": ["a", "dog"]}, {"raw": " "}, "A pup"]}
    taken = read("karpathy", make_karpathy([image]))
    assert [sample.caption for sample in taken] == ["a dog", "A pup"]


def test_images_that_make_no_sense_are_rejected(make_karpathy):
    odd = [
        [1],
        {"sentences": []},
        entry("x.jpg", "train") | {"sentences": [{"text": 1}]},
        entry("x.jpg", "train") | {"sentences": None},
    ]
    taken = read("karpathy", make_karpathy([*IMAGES, *odd]))
    assert len(taken) == 4 + len(odd)
    assert rejected(taken) == [
        ("dataset.json: images[3]", "entry is a list, not an object"),
        ("dataset.json: images[4]", "image has no `filename`"),
        ("dataset.json: images[5]", Has("`sentences` is no list of")),
        ("dataset.json: images[6]", Has("`sentences` is no list of")),
    ]


# --- TextCaps -----------------------------------------------------------------------------------

REFERENCES = ["Five bottles on a shelf", "Many bottles together."]


def row(image="011e7e629fb9ae7b", number=0):
    about = {"image_id": image, "image_name": image, "image_path": f"train/{image}.jpg"}
    said = {"caption_str": REFERENCES[number], "reference_strs": REFERENCES}
    return about | {"caption_id": 100 + number} | said


@pytest.fixture
def make_textcaps(make):
    def make_textcaps(*rows, folder="train_images"):
        names = [f"{folder}/{name}.jpg" for name in ("011e7e629fb9ae7b", "09efcb22ca121f57")]
        ocr = {"dataset_name": "textvqa", "data": [{"image_id": "0", "ocr_tokens": ["LESS"]}]}
        make("TextVQA_Rosetta_OCR_v0.2_train.json", ocr, [])
        return make("TextCaps_0.1_train.json", {"dataset_name": "textcaps", "data": rows}, names)

    return make_textcaps


@pytest.mark.parametrize("folder", ["train_images", "images", "train", "."])
def test_every_caption_of_textcaps_is_a_sample_once(tmp_path, make_textcaps, members, jpeg, folder):
    raw = make_textcaps(row(), row("09efcb22ca121f57"), row(number=1), folder=folder)
    assert choose_reader(raw).name == "textcaps"
    report = pack_dataset(raw, tmp_path / "out")
    assert (report.samples, report.rejected, report.left_out) == (3, 0, 1)
    first, second, third = members(tmp_path / "out").values()
    assert [s["txt"].decode() for s in (first, second, third)] == [*REFERENCES, REFERENCES[0]]
    assert [s["jpg"] for s in (first, second, third)] == [jpeg(0), jpeg(0), jpeg(1)]
    record = json.loads(first["json"])
    assert record["captions"] == record["reference_strs"] == REFERENCES
    assert [annotation["caption_id"] for annotation in record["annotations"]] == [100, 101]


def test_a_row_of_an_image_with_all_its_captions_gives_all(make_textcaps):
    whole = {name: value for name, value in row().items() if name != "caption_str"}
    taken = read("textcaps", make_textcaps(whole))
    assert [sample.caption for sample in taken] == REFERENCES


def test_rows_that_make_no_sense_are_rejected_by_name(make_textcaps):
    broken = [[1], {"caption_str": "x"}, {"image_id": "a"}]
    assert rejected(read("textcaps", make_textcaps(row(), *broken))) == [
        ("TextCaps_0.1_train.json: data[1]", "entry is a list, not an object"),
        ("TextCaps_0.1_train.json: data[2]", "row has no `image_id`"),
        ("TextCaps_0.1_train.json: data[3]", "row has no `caption_str`"),
    ]
