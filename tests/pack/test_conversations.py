"""Records of conversations and documents: LLaVA's, The Cauldron's, OBELICS's."""

import base64
import json

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe import PackError, pack_dataset
from datapipe.pack.input.raw_sample import RawSample, ReadOptions, Reject
from datapipe.pack.readers import all_readers
from datapipe.text.conversation import conversation
from datapipe.text.sample_text import interleaved, sample_text

from .cases import record_cases
from .chats import chat, llava, question, text
from .layouts.table import Has
from .reading import choose_reader, read_all

TEXTS = [
    {"user": "What?", "assistant": "A cat.", "source": "VQA"},
    {"user": "Where?", "assistant": "On a mat.", "source": "VQA"},
]
LLAVA = [
    llava("<image>\nWhat?", "A cat.", id="one", image="a.jpg", x=1.5),
    llava("<image><image>", "Ü", id=2, image=["a.jpg", "sub/b.jpg"]),
    llava("1+1?", "2", id="text", meta={"deep": [None, True]}),
    llava("hi", "ho", id="none", image=None),
    llava("What?", "A cat.", id="unmarked", image="a.jpg"),
]
GOOD = {
    "llava": llava("<image>What?", "A cat.", image="a.jpg"),
    "cauldron": {"images": ["a.jpg"], "texts": TEXTS},
    "interleaved": {"texts": ["a", None], "images": [None, "a.jpg"]},
    "chat": chat([{"type": "image", "image": "a.jpg"}, text("?")], "A cat."),
}


@pytest.mark.parametrize("name", ["data.json", "data.jsonl"])
@pytest.mark.parametrize("give", ["folder", "file"])
def test_llava_records_with_one_several_and_no_images(tmp_path, make_llava, packed, name, give):
    path = make_llava(tmp_path / "raw", LLAVA, name)
    image, other = ((tmp_path / "raw" / name).read_bytes() for name in ("a.jpg", "sub/b.jpg"))
    samples = packed(path if give == "file" else path.parent)
    assert [json.loads(sample.pop("json")) for sample in samples] == LLAVA
    assert samples == [{"jpg": image}, {"jpg": image, "1.jpg": other}, {}, {}, {"jpg": image}]
    rows = pq.read_table(next((tmp_path / "out").glob("*.parquet"))).to_pylist()
    assert [row["images"] for row in rows] == [1, 2, 0, 0, 1]
    assert [row["source"] for row in rows] == [f"{name}#{number}" for number in range(5)]
    assert rows[0]["text_bytes"] == len("user: <image>\nWhat?\nassistant: A cat.")


def test_bytes_leave_a_document_for_members_and_addresses_of_files_stay(
    lines, packed_records, tmp_path, jpeg
):
    uri = "data:image/jpeg;base64," + base64.b64encode(jpeg(2)).decode()
    address = f"file://{tmp_path}/raw/b.jpg"
    record = {"texts": [None, "a", None, None], "images": [address, None, uri, uri]}
    ((kept, images),) = packed_records(lines(record))
    assert kept["images"] == [address, None, "image:1", "image:2"]
    assert list(images.values()) == [jpeg(1), jpeg(2), jpeg(2)]


# --- what makes no sense ------------------------------------------------------------------------


@pytest.mark.parametrize("format", GOOD)
def test_records_that_make_no_sense_are_rejected(reasons_of, format):
    records, reasons = zip(*record_cases(f"{format} records that make no sense"), strict=True)
    make = question if format == "chat" else llava
    records = [make(**record) if "asked" in record else record for record in records]
    assert reasons_of(GOOD[format], *records) == [*map(Has, reasons)]


def test_a_missing_image_root_is_refused(tmp_path, make_llava):
    raw = make_llava(tmp_path / "raw", LLAVA)
    with pytest.raises(PackError, match=r"--image-root .*nowhere: no such folder"):
        pack_dataset(raw, tmp_path / "out", image_root=tmp_path / "nowhere")


@pytest.mark.parametrize("format", GOOD)
def test_a_field_becomes_the_key(lines, format):
    path = lines(GOOD[format] | {"id": 7}, GOOD[format])
    named, unnamed = read_all(choose_reader(path, format), path, ReadOptions(key_from="id"))
    assert named.key == "7"
    reason = "`id`, which the key is taken from, is missing"
    assert unnamed == Reject("data.jsonl#1", reason, "MissingMember")


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["bytes", "path", "url", "text"]), inner, max_size=3)
    ),
    max_leaves=5,
)
PART = st.sampled_from(["<image>", "", "a.jpg", "b.jpg", "data:,", "http://a/b"]) | ANY


@st.composite
def spoilt(draw, value):
    """A value of which some parts are others, or are gone."""
    if draw(st.integers(0, 7)) == 0:
        return draw(PART)
    if isinstance(value, dict):
        return {name: draw(spoilt(v)) for name, v in value.items() if draw(st.integers(0, 15))}
    if isinstance(value, list):
        return [draw(spoilt(v)) for v in value] + [draw(PART)] * (draw(st.integers(0, 7)) == 0)
    return value


@pytest.mark.parametrize("format", GOOD)
@settings(max_examples=40)
@given(data=st.data())
def test_hostile_records_are_samples_or_rejects(tmp_path_factory, format, data):
    good = GOOD[format]
    records = data.draw(st.lists(spoilt(good), max_size=4))
    path = tmp_path_factory.mktemp("raw") / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in [good, *records]))
    taken = list(read_all(all_readers()[format], path, ReadOptions()))
    assert len(taken) == len(records) + 1
    assert taken[0].record == good
    for record, one in zip([good, *records], taken, strict=True):
        assert isinstance(one, RawSample | Reject)
        if isinstance(one, Reject):
            continue
        if format == "interleaved":
            assert interleaved(one.record) == record["texts"]
            assert record["texts"].count(None) == len(one.images)
        elif format == "cauldron":
            assert sample_text(None, one.record).count("<image>") in (0, len(one.images))
        else:
            places = [turn.text.count("<image>") for turn in conversation(one.record)]
            assert sum(places) in (0, len(one.images))
