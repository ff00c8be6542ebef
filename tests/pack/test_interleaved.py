"""Documents of texts and images in turn, as in OBELICS, whose order survives."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.pack.input.raw_sample import RawSample, ReadOptions, Reject
from datapipe.pack.readers.conversations import INTERLEAVED as READER
from datapipe.text.sample_text import interleaved, sample_text

from .reading import read_all


@pytest.fixture
def lines(tmp_path, jpeg):
    """Writes documents as JSONL, beside images a.jpg and b.jpg."""

    def write(*records):
        (tmp_path / "raw").mkdir()
        (tmp_path / "raw" / "a.jpg").write_bytes(jpeg(0))
        (tmp_path / "raw" / "b.jpg").write_bytes(jpeg(1))
        path = tmp_path / "raw" / "docs.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path

    return write


def rebuilt(record, images):
    """The document as texts and images, from what stands in a shard."""
    members = iter(images.values())  # in the order of the tar
    return [next(members) if text is None else text for text in record["texts"]]


@pytest.mark.parametrize("options", [{}, {"format": "interleaved"}])
@pytest.mark.parametrize("kind", ["embedded", "paths"])
def test_obelics_documents_can_be_rebuilt(tmp_path, packed_records, jpeg, options, kind):
    datasets = pytest.importorskip("datasets")
    text = datasets.Value("string")
    features = datasets.Features(
        images=datasets.Sequence(datasets.Image() if kind == "embedded" else text),
        metadata=text,
        general_metadata=text,
        texts=datasets.Sequence(text),
    )
    raw = tmp_path / "raw"
    raw.mkdir()
    for number in range(2):
        (raw / f"{number}.jpg").write_bytes(jpeg(number))

    def image(number):
        stored = {"bytes": jpeg(number), "path": f"{number}.jpg"}
        return stored if kind == "embedded" else f"{number}.jpg"

    metadata = json.dumps([{"src": "http://a/1.jpg"}, None, None, {"src": "http://a/0.jpg"}, None])
    about = {"metadata": metadata, "general_metadata": json.dumps({"url": "http://a"})}
    documents = [
        {"images": [image(1), None, None, image(0), None],
         "texts": [None, "One.\n\nTwo.", "", None, "Four."]},
        {"images": [None, image(0)], "texts": ["Five.", None]},
        {"images": [None], "texts": ["No image."]},
    ]  # fmt: skip
    records = [document | about for document in documents]
    datasets.Dataset.from_list(records, features).to_parquet(raw / "train-00000.parquet")
    (first, images), *others = packed_records(raw, **options)
    assert first == documents[0] | about | {"images": ["1.jpg", None, None, "0.jpg", None]}
    assert rebuilt(first, images) == [jpeg(1), "One.\n\nTwo.", "", jpeg(0), "Four."]
    assert [rebuilt(*other) for other in others] == [["Five.", jpeg(0)], ["No image."]]
    assert sample_text(None, others[0][0]) == "Five.\n\n<image>"


def test_bytes_leave_the_record_for_members(lines, packed_records, jpeg):
    uri = "data:image/jpeg;base64," + base64.b64encode(jpeg(2)).decode()
    record = {"texts": [None, "a", None, None], "images": ["b.jpg", None, uri, uri]}
    ((kept, images),) = packed_records(lines(record))
    assert kept["images"] == ["b.jpg", None, "image:1", "image:2"]
    assert rebuilt(kept, images) == [jpeg(1), "a", jpeg(2), jpeg(2)]


def test_file_addresses(lines, packed_records, tmp_path, jpeg):
    address = f"file://{tmp_path}/raw/b.jpg"
    record = {"texts": ["a", None], "images": [None, address]}
    assert packed_records(lines(record)) == [(record, {"jpg": jpeg(1)})]


def test_a_field_becomes_the_key(lines):
    path = lines({"texts": ["a"], "images": [None], "id": "x7"})
    (sample,) = read_all(READER, path, ReadOptions(key_from="id"))
    assert sample.key == "x7"


@pytest.mark.parametrize(
    ("texts", "images", "reason"),
    [
        (["a", "b"], [None, "a.jpg"], "place 1 holds both a text and an image"),
        (["a", None], [None, None], "place 1 holds neither text nor image"),
        (["a", None], [None], "no lists of equal length"),
        (["a", 5], [None, None], "no lists of equal length"),
        ("a", "b", "no lists of equal length"),
        ([], [], "record has no `texts` and `images`"),
        (None, ["a.jpg"], "record has no `texts` and `images`"),
        (["an <image>", None], [None, "a.jpg"], "the text at place 0 contains <image>"),
        ([None, "a"], ["https://example.com/a.jpg", None], "download"),
        ([None, "a"], ["none.jpg", None], "file is missing"),
        ([None, "a"], [{"bytes": None, "path": None}, None], "image"),
        ([None, "a"], [5, None], "image"),
    ],
)
def test_a_record_that_makes_no_sense_is_rejected(
    lines, packed_records, rejects, tmp_path, texts, images, reason
):
    path = lines(
        {"texts": ["a", None], "images": [None, "a.jpg"]}, {"texts": texts, "images": images}
    )
    assert len(packed_records(path)) == 1
    (line,) = rejects(tmp_path / "out")
    assert reason in line["reason"]


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["bytes", "path", "url"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def mostly(good):
    """Return a strategy of good values; one time in eight, of any value."""
    return st.integers(0, 7).flatmap(lambda die: good if die else ANY)


def document(places):
    return {"texts": [text for text, _ in places], "images": [image for _, image in places]}


PLACE = st.one_of(
    st.tuples(mostly(st.sampled_from(["a", "", "<image>"])), st.none()),
    st.tuples(st.none(), mostly(st.sampled_from(["a.jpg", "http://a/b"]))),
)
RECORD = mostly(
    st.lists(PLACE, max_size=3).map(document) | st.fixed_dictionaries({"texts": ANY, "images": ANY})
)


@given(st.lists(RECORD, max_size=4))
def test_hostile_records_are_samples_or_rejects(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("raw") / "a.jsonl"
    records = [{"texts": ["a"], "images": [None]}, *records]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    taken = list(read_all(READER, path, ReadOptions()))
    assert len(taken) == len(records)
    for record, one in zip(records, taken, strict=True):
        assert isinstance(one, RawSample | Reject)
        if isinstance(one, RawSample):
            assert interleaved(one.record) == record["texts"]
            assert record["texts"].count(None) == len(one.images)
