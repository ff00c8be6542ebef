"""What the text of a sample is, in every layout that records come in."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.text.conversation import conversation, part_kind, raw_turns
from datapipe.text.sample_text import find_texts, interleaved, parse_text, sample_text
from tests.case_files import cases


@pytest.mark.parametrize(("exts", "plain", "named", "unclear"), cases("index/text_members"))
def test_which_members_are_the_text_of_a_sample(exts, plain, named, unclear):
    found = find_texts(exts.split())
    assert found.plain == (int(plain) if plain else None)
    assert found.named == tuple(map(int, named.split()))
    assert bool(found.unclear) == (unclear == "unclear")


def test_a_byte_order_mark_is_no_part_of_a_caption():
    assert parse_text(b"\xef\xbb\xbfA cat\xef\xbb\xbf.") == "A cat\ufeff."


@pytest.mark.parametrize(("part", "kind"), cases("index/part_kinds"))
def test_the_kind_of_a_part(part, kind):
    assert part_kind(json.loads(part)) == kind


@pytest.mark.parametrize(("record", "not_held"), cases("index/other_records"))
def test_other_records_hold_no_conversation_or_document(record, not_held):
    read = conversation if not_held == "no conversation" else interleaved
    assert read(json.loads(record)) is None


@pytest.mark.parametrize(("record", "text"), cases("index/sample_texts"))
def test_the_text_of_a_record(record, text):
    assert sample_text(None, json.loads(record)) == text


@pytest.mark.parametrize("caption", ["of a file", ""])
def test_a_caption_of_its_own_goes_before_that_of_the_record(caption):
    assert sample_text(caption, {"caption": "of the record"}) == caption


def hostile():
    """Any JSON, with the fields that texts are recognised by in likely and unlikely places."""
    words = st.sampled_from(["text", "image", "image_url", "<image>", "video"])
    fields = st.sampled_from(
        ["from", "value", "role", "content", "type", "text", "image", "url", "user", "assistant",
         "tool_calls"]
    )  # fmt: skip
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | words,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner, max_size=3),
        max_leaves=6,
    )
    text = words | anything
    part = st.fixed_dictionaries({}, optional={"type": text, "text": text, "image": text})
    content = st.lists(part | anything, max_size=3) | text
    turn = st.fixed_dictionaries(
        {}, optional={"role": text, "content": content, "from": text, "value": text}
    )
    turns = st.lists(turn, max_size=2) | anything
    question = st.fixed_dictionaries({"user": text, "assistant": text})
    texts = st.lists(question, max_size=2) | st.lists(st.none() | text, max_size=3) | anything
    images = st.lists(st.none() | text, max_size=3) | anything
    names = {"conversations": turns, "messages": turns, "texts": texts, "images": images}
    others = dict.fromkeys(["caption", "text", "captions"], text)
    return st.fixed_dictionaries({}, optional=names | others) | anything


@given(hostile())
def test_no_record_raises(record):
    assert isinstance(sample_text(None, record), str)
    if isinstance(record, dict):
        turns, document = raw_turns(record), interleaved(record)
        assert turns is None or all(isinstance(part, str) for turn in turns for part in turn[:2])
        assert document is None or document.count(None) == sum(
            i is not None for i in record["images"]
        )


def test_a_record_nested_deeply_does_not_raise():
    deep = json.loads("[" * 900 + "]" * 900)
    for record in (
        {"conversations": [{"from": deep, "value": "a"}]},
        {"messages": [{"role": deep, "content": deep}]},
        {"messages": [{"role": "user", "content": [{"type": deep}]}]},
        {"texts": deep, "images": deep, "captions": deep},
    ):
        assert isinstance(sample_text(None, record), str)
