"""TextCaps: a row for each caption, each once, with images by path or id."""

import json

import pytest

from datapipe import pack_dataset
from datapipe.pack.input.raw_sample import ReadOptions, Reject
from datapipe.pack.readers.caption_files import TEXTCAPS as READER

from .reading import choose_reader, read_all

REFERENCES = ["Five bottles on a shelf", "Many bottles together."]


def row(image="011e7e629fb9ae7b", number=0, **more):
    return {
        "image_id": image,
        "image_classes": ["Perfume"],
        "flickr_300k_url": f"https://c1.staticflickr.com/{image}_z.jpg",
        "set_name": "train",
        "image_name": image,
        "image_path": f"train/{image}.jpg",
        "caption_id": 100 + number,
        "caption_str": REFERENCES[number],
        "caption_tokens": ["<s>", "five", "</s>"],
        "reference_strs": REFERENCES,
    } | more


@pytest.fixture
def make_textcaps(tmp_path, jpeg):
    def make(*rows, folder="train_images"):
        raw = tmp_path / "raw"
        (raw / folder).mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(("011e7e629fb9ae7b", "09efcb22ca121f57")):
            (raw / folder / f"{name}.jpg").write_bytes(jpeg(number))
        whole = {"dataset_type": "train", "dataset_name": "textcaps", "data": rows}
        (raw / "TextCaps_0.1_train.json").write_text(json.dumps(whole))
        ocr = {"dataset_name": "textvqa", "data": [{"image_id": "0", "ocr_tokens": ["LESS"]}]}
        (raw / "TextVQA_Rosetta_OCR_v0.2_train.json").write_text(json.dumps(ocr))
        return raw

    return make


def read(raw, **options):
    return list(read_all(READER, raw, ReadOptions(**options)))


@pytest.mark.parametrize("folder", ["train_images", "images", "train", "."])
def test_every_caption_is_a_sample_once(tmp_path, make_textcaps, members, jpeg, folder):
    rows = [row(), row("09efcb22ca121f57"), row(number=1)]
    raw = make_textcaps(*rows, folder=folder)
    assert choose_reader(raw) is READER
    report = pack_dataset(raw, tmp_path / "out")
    assert (report.samples, report.rejected, report.left_out) == (3, 0, 1)
    first, second, third = members(tmp_path / "out").values()
    assert [s["txt"].decode() for s in (first, second, third)] == [*REFERENCES, REFERENCES[0]]
    assert [s["jpg"] for s in (first, second, third)] == [jpeg(0), jpeg(0), jpeg(1)]
    record = json.loads(first["json"])
    assert record["captions"] == REFERENCES
    assert [annotation["caption_id"] for annotation in record["annotations"]] == [100, 101]
    assert record["reference_strs"] == REFERENCES


def test_a_row_of_an_image_with_all_its_captions_gives_all(make_textcaps):
    whole = row()
    del whole["caption_str"]
    assert [sample.caption for sample in read(make_textcaps(whole))] == REFERENCES


def test_rows_that_make_no_sense_are_rejected_by_name(make_textcaps):
    broken = [[1], {"caption_str": "x"}, {"image_id": "a"}]
    taken = read(make_textcaps(row(), *broken))
    assert [(t.source.partition(": ")[2], t.reason) for t in taken if isinstance(t, Reject)] == [
        ("data[1]", "entry is a list, not an object"),
        ("data[2]", "row has no `image_id`"),
        ("data[3]", "row has no `caption_str`"),
    ]
