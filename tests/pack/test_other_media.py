"""Records that need more than text and images: refused by name, never packed as text alone."""

from pathlib import Path

import pytest
import yaml

from datapipe.errors import DecodeError
from datapipe.text.conversation import conversation

from .chats import llava, question, text
from .layouts.table import Has


def image(url):
    return {"type": "image_url", "image_url": {"url": url, "image_wh": [8, 8]}}


def record_of(stated):
    """Return a record and the words of its reject."""
    stated = dict(stated)
    why, answer = stated.pop("why", None), stated.pop("answer", "Ok.")
    if "chat" in stated:
        return question(stated.pop("chat"), answer, **stated), why
    return (llava(stated.pop("llava"), answer, **stated) if "llava" in stated else stated), why


RECORDS = yaml.safe_load(Path(__file__).with_name("other_media.yaml").read_text("utf-8"))


@pytest.mark.parametrize("good", [llava("1+1?"), question("1+1?")])
def test_records_with_another_medium_are_rejected(reasons_of, good):
    stated = [record_of(one) for one in RECORDS["rejected"]]
    expected = [(record, Has(why)) for record, why in stated if record.keys() & good.keys()]
    assert reasons_of(good, *(record for record, _ in expected)) == [why for _, why in expected]


def test_words_and_origins_are_no_media(reasons_of):
    words = [record_of(one)[0] for one in RECORDS["packed"]]
    assert reasons_of(question("1+1?"), *words) == [None] * len(words)


XTUNER = [
    ([image("a.jpg"), text("<IMG_CONTEXT>\nWhat is it?")], "<image>\nWhat is it?"),
    ([text("One"), image("a.jpg"), image("b.jpg"), text("<IMG_CONTEXT><IMG_CONTEXT>two")],
     "One<image><image>two"),
    ([image("a.jpg"), image("b.jpg"), text("<img><IMG_CONTEXT></img>\n"),
      text("<IMG_CONTEXT>")],
     "<image>\n<image>"),
    ([image("a.jpg"), text("What is it?")], "<image>What is it?"),
]  # fmt: skip


def test_an_image_part_of_xtuner_and_its_mark_in_the_text_are_one_image(reasons_of):
    records = [question(content) for content, _ in XTUNER]
    other = question([image("a.jpg"), text("<IMG_CONTEXT> <IMG_CONTEXT> What?")])
    *none, said = reasons_of(question("1+1?"), *records, other)
    assert none == [None] * len(XTUNER)
    assert "3 <image> places for 1 image" in said
    for record, (content, expected) in zip(records, XTUNER, strict=True):
        images = sum("image_url" in part for part in content)
        assert conversation(record, images=images)[0].text == expected


def test_a_part_of_sound_is_named_in_a_conversation_that_a_loader_reads():
    with pytest.raises(DecodeError, match=r"turn 1 of `messages` has a part \(audio\)"):
        conversation(question([{"type": "audio", "audio": "a.wav"}, text("What?")]))
