"""The Cauldron and FineVision: images, and questions and answers about them."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.pack.input.raw_sample import RawSample, ReadOptions, Reject
from datapipe.pack.readers.conversations import CAULDRON as READER
from datapipe.text.conversation import conversation
from datapipe.text.sample_text import sample_text

from .reading import read_all

TEXTS = [
    {"user": "What?", "assistant": "A cat.", "source": "VQA"},
    {"user": "Where?", "assistant": "On a mat.", "source": "VQA"},
]


@pytest.fixture
def lines(tmp_path, jpeg):
    """Writes records as JSONL, beside an image a.jpg."""

    def write(*records):
        (tmp_path / "raw").mkdir()
        (tmp_path / "raw" / "a.jpg").write_bytes(jpeg(0))
        path = tmp_path / "raw" / "train.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path

    return write


def write_parquet(path, records, **columns):
    datasets = pytest.importorskip("datasets")
    text = {name: datasets.Value("string") for name in records[0]["texts"][0]}
    features = datasets.Features(
        images=datasets.Sequence(datasets.Image()), texts=[text], **columns
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list(records, features).to_parquet(path)
    return path.parent


@pytest.mark.parametrize("options", [{}, {"format": "cauldron"}])
def test_the_cauldron(tmp_path, packed_records, jpeg, options):
    records = [
        {"images": [{"bytes": jpeg(0), "path": "cat.jpg"}], "texts": TEXTS},
        {"images": [{"bytes": jpeg(i), "path": None} for i in (1, 2)], "texts": TEXTS[:1]},
        {"images": [], "texts": TEXTS[1:]},
    ]
    raw = write_parquet(tmp_path / "vqav2" / "train-00000-of-00001.parquet", records)
    assert packed_records(raw, **options) == [
        ({"images": ["cat.jpg"], "texts": TEXTS}, {"jpg": jpeg(0)}),
        ({"images": ["image:0", "image:1"], "texts": TEXTS[:1]},
         {"jpg": jpeg(1), "1.jpg": jpeg(2)}),
        ({"images": [], "texts": TEXTS[1:]}, {}),
    ]  # fmt: skip


def test_further_columns_of_finevision_are_kept(tmp_path, packed_records, jpeg):
    datasets = pytest.importorskip("datasets")
    texts = [{"user": "What?", "assistant": "A cat."}]
    more = {"source": "VQA", "relevance_ratings": [5], "relevance_min": 5, "length": None}
    record = {"images": [{"bytes": jpeg(0), "path": "cat.jpg"}], "texts": texts} | more
    columns = {
        "source": datasets.Value("string"),
        "relevance_ratings": datasets.Sequence(datasets.Value("int64")),
        "relevance_min": datasets.Value("int64"),
        "length": datasets.Value("int64"),
    }
    raw = write_parquet(tmp_path / "raw" / "a.parquet", [record], **columns)
    assert packed_records(raw) == [
        ({"images": ["cat.jpg"], "texts": texts} | more, {"jpg": jpeg(0)})
    ]


def test_the_text_has_a_turn_for_each_question_and_answer(lines):
    (sample,) = read_all(READER, lines({"images": ["a.jpg"], "texts": TEXTS}), ReadOptions())
    assert conversation(sample.record) == [
        ("user", "What?", False), ("assistant", "A cat.", True),
        ("user", "Where?", False), ("assistant", "On a mat.", True),
    ]  # fmt: skip


def test_jsonl_with_paths(lines, packed_records, jpeg):
    record = {"images": ["a.jpg"], "texts": [{"user": "<image>What?", "assistant": "A cat."}]}
    assert packed_records(lines(record)) == [(record, {"jpg": jpeg(0)})]


def test_a_field_becomes_the_key(lines):
    (sample,) = read_all(READER, lines({"texts": TEXTS, "id": "x7"}), ReadOptions(key_from="id"))
    assert sample.key == "x7"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"images": ["a.jpg"], "texts": []}, "record has no `texts`"),
        ({"images": ["a.jpg"]}, "record has no `texts`"),
        ({"texts": [{"user": "a", "assistant": None}]}, "`texts` is no list of objects"),
        ({"texts": "a"}, "`texts` is no list of objects"),
        ({"images": [None], "texts": TEXTS}, "image"),
        ({"images": ["none.jpg"], "texts": TEXTS}, "file is missing"),
        ({"texts": [{"user": "<image>", "assistant": "a"}]}, "1 <image> places for 0 images"),
    ],
)
def test_a_record_that_makes_no_sense_is_rejected(
    lines, packed_records, rejects, tmp_path, record, reason
):
    assert len(packed_records(lines({"images": ["a.jpg"], "texts": TEXTS}, record))) == 1
    (line,) = rejects(tmp_path / "out")
    assert reason in line["reason"]


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["bytes", "path", "user"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def mostly(good):
    """Return a strategy of good values; one time in eight, of any value."""
    return st.integers(0, 7).flatmap(lambda die: good if die else ANY)


QUESTION = st.fixed_dictionaries(
    {"user": mostly(st.sampled_from(["a", "<image>"])), "assistant": mostly(st.just("b"))}
)
RECORD = mostly(
    st.fixed_dictionaries(
        {"texts": mostly(st.lists(mostly(QUESTION), max_size=3))},
        optional={"images": mostly(st.lists(mostly(st.just("a.jpg")), max_size=2))},
    )
)


@given(st.lists(RECORD, max_size=4))
def test_hostile_records_are_samples_or_rejects(tmp_path_factory, records):
    path = Path(tmp_path_factory.mktemp("raw")) / "a.jsonl"
    records = [{"images": [], "texts": TEXTS}, *records]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    taken = list(read_all(READER, path, ReadOptions()))
    assert len(taken) == len(records)
    for record, one in zip(records, taken, strict=True):
        assert isinstance(one, Reject) or (isinstance(one, RawSample) and READER.fits(record))
        if isinstance(one, RawSample):
            assert sample_text(None, one.record).count("<image>") in (0, len(one.images))
