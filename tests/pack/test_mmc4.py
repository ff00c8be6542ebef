"""MMC4's documents: images stand before their sentences; those not downloaded are left out."""

import json

import pytest

from datapipe import pack_dataset
from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import RawSample, ReadOptions
from datapipe.pack.readers.conversations import MMC4 as READER
from datapipe.text.sample_text import interleaved, sample_text

from .reading import choose_reader, read_all

TEXTS = ["When you lock the door.", "Press the switch.", "When you unlock."]


def image(name, index):
    about = {"face_detections": None, "matched_sim": 0.27, "raw_url": f"http://www.a.b/{name}"}
    return {"image_name": name, "matched_text_index": index, **about}


def document(*images):
    listed = [image(name, index) for name, index in images]
    matrix = [[0.24, 0.31, 0.27] for _ in images]
    more = {"url": "http://www.a.b/c.html", "could_have_url_duplicate": 0}
    return {"image_info": listed, "similarity_matrix": matrix, "text_list": TEXTS, **more}


@pytest.fixture
def make_mmc4(tmp_path, put):
    """Writes documents, and images a.jpg, b.jpg and c.jpg."""

    def make(*documents, folder="images"):
        images = {f"{folder}/{name}.jpg": number for number, name in enumerate("abc")}
        lines = "".join(json.dumps(document) + "\n" for document in documents)
        return put(tmp_path / "raw", images | {"docs_no_face_shard_0_v2.jsonl": lines})

    return make


def read(raw, **options):
    return list(read_all(READER, raw, ReadOptions(**options)))


@pytest.mark.parametrize("folder", [".", "images", "downloads/shard_0"])
def test_images_stand_before_the_sentences_they_match(tmp_path, make_mmc4, members, jpeg, folder):
    whole = document(("b.jpg", 2), ("a.jpg", 1), ("c.jpg", 2))
    raw = make_mmc4(whole, folder=folder)
    assert choose_reader(raw) is choose_reader(next(raw.glob("*.jsonl"))) is READER
    report = pack_dataset(raw, tmp_path / "out")
    assert (report.samples, report.images, report.rejected) == (1, 3, 0)
    (sample,) = members(tmp_path / "out").values()
    record = json.loads(sample["json"])
    assert record["texts"] == [TEXTS[0], None, TEXTS[1], None, None, TEXTS[2]]
    assert record["images"] == [None, "a.jpg", None, "b.jpg", "c.jpg", None]
    assert [sample[name] for name in ("jpg", "1.jpg", "2.jpg")] == [jpeg(0), jpeg(1), jpeg(2)]
    assert interleaved(record) == record["texts"]
    assert sample_text(None, record).startswith("When you lock the door.\n\n<image>\n\nPress")
    assert record["image_info"] == whole["image_info"]
    assert record["url"] == whole["url"]


def test_images_that_were_not_downloaded_are_left_out_and_counted(tmp_path, make_mmc4, rejects):
    raw = make_mmc4(
        document(("gone.jpg", 0), ("a.jpg", 1)),
        document(("gone.jpg", 0), ("lost.jpg", 1)),
        document(),
    )
    report = pack_dataset(raw, tmp_path / "out", max_rejects=1)
    assert (report.samples, report.images, report.rejected) == (2, 1, 1)
    assert any(note.startswith("1 images that were not downloaded") for note in report.notes)
    (line,) = rejects(tmp_path / "out")
    assert line["source"] == "docs_no_face_shard_0_v2.jsonl#1"
    assert line["reason"] == "none of its 2 images was downloaded"
    first, _, text = read(raw)
    assert first.record["texts"] == [TEXTS[0], None, TEXTS[1], TEXTS[2]]
    assert first.record["images"] == [None, "a.jpg", None, None]
    assert (text.images, text.record["texts"]) == ((), TEXTS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"image_info": [image("a.jpg", 3)]}, "image 0 has the `matched_text_index` 3 of 3 texts"),
        ({"image_info": [image("a.jpg", None)]}, "image 0 has the `matched_text_index` None of"),
        ({"image_info": [image("", 0)]}, "image 0 has no `image_name`"),
        ({"image_info": None}, "record has no `text_list` and `image_info` as lists"),
        ({"text_list": []}, "of 0 texts"),
        ({"text_list": ["a", 1, "b"]}, "`text_list` holds something else than texts"),
        ({"text_list": ["an <image>", "a", "b"]}, "contains <image>"),
    ],
)
def test_a_document_that_makes_no_sense_is_rejected(make_mmc4, change, reason):
    good = document(("a.jpg", 0))
    sample, line = read(make_mmc4(good, good | change))
    assert isinstance(sample, RawSample)
    assert line.source == "docs_no_face_shard_0_v2.jsonl#1"
    assert reason in line.reason


def test_documents_of_which_no_image_was_downloaded_are_refused(make_mmc4):
    raw = make_mmc4(document(("gone.jpg", 0)))
    said = r"the first is gone.jpg\) are in none of .*--image-root, or down"
    with pytest.raises(PackError, match=said):
        read(raw)
