"""Chats of every layout that has `messages`: images in their parts, beside them, or none."""

import base64
import json

import pytest

from datapipe.text.conversation import conversation

from .cases import values
from .chats import chat, text

BRIEF = [("system", "Be brief."), ("user", "<image>What?"), ("assistant", "A cat.")]


def said(record):
    return [turn[:2] for turn in conversation(record)]


def url(value):
    return {"type": "image_url", "image_url": {"url": value, "detail": "high"}}


@pytest.mark.parametrize("options", [{}, {"format": "chat"}])
def test_openai_fine_tuning_files(lines, packed_records, jpeg, options):
    """Base64 leaves the record for a member; the other kinds of paths stay in it."""
    held = f"data:image/jpeg;base64,{base64.b64encode(jpeg(0)).decode()}"
    shown = chat([text("Which?"), url(held), url("b.jpg")], "The second.")
    first, second = packed_records(lines(shown, chat("1+1?", "2")), **options)
    content = [text("Which?"), url("image:0"), url("b.jpg")]
    assert first == (chat(content, "The second."), {"jpg": jpeg(0), "1.jpg": jpeg(1)})
    assert second == (chat("1+1?", "2"), {})
    assert said(first[0])[0] == ("user", "Which?<image><image>")


@pytest.mark.parametrize("part", values("parts of a chat that are images"), ids=str)
def test_image_parts_of_every_spelling(lines, raw, packed_records, jpeg, part):
    """Axolotl, Anthropic and Amazon Bedrock write base64."""
    part = replaced(part, "FOLDER", str(raw))
    given = replaced(part, "HELD", base64.b64encode(jpeg(0)).decode())
    kept = replaced(part, '{"bytes": "HELD"}', '"image:0"')
    kept = replaced(kept, "HELD", "image:0")

    def record(part):
        asked = [part, {"type": "input_text", "text": "What?"}]
        return chat(asked, "A cat.", system=[{"text": "Be brief."}])

    assert packed_records(lines(record(given))) == [(record(kept), {"jpg": jpeg(0)})]
    assert said(record(kept)) == BRIEF


def replaced(part, old, new):
    return json.loads(json.dumps(part).replace(old, new))


@pytest.mark.parametrize("system", [{"parts": [{"text": "Be brief."}]}, "Be brief."], ids=str)
@pytest.mark.parametrize("name", ["inlineData", "inline_data"])
def test_contents_of_gemini(lines, packed_records, jpeg, name, system):
    held = {"mimeType": "image/jpeg", "data": base64.b64encode(jpeg(0)).decode()}
    turns = [
        {"role": "user", "parts": [{name: held}, {"text": "What?"}]},
        {"role": "model", "parts": [{"text": "A cat."}]},
    ]
    record = {"systemInstruction": system, "contents": turns, "id": 1}
    ((kept, images),) = packed_records(lines(record))
    assert (kept["id"], images) == (1, {"jpg": jpeg(0)})
    assert said(kept) == BRIEF


def test_image_columns_in_parts_of_parquet(raw, packed_records, jpeg):
    datasets = pytest.importorskip("datasets")
    string = datasets.Value("string")
    part = {"type": string, "text": string, "image": datasets.Image()}
    features = datasets.Features(messages=[{"role": string, "content": [part]}], mask=part["image"])
    shown = {"type": "image", "text": None, "image": {"bytes": jpeg(0), "path": None}}
    mask = {"bytes": b"another image", "path": "m.png"}
    record = chat([shown, text("What?") | {"image": None}], mask=mask)
    datasets.Dataset.from_list([record], features).to_parquet(raw / "a.parquet")
    ((kept, images),) = packed_records(raw)
    parts = [shown | {"image": "image:0"}, text("What?") | {"image": None}]
    assert kept["messages"][0]["content"] == parts
    assert (kept["mask"], images) == ("m.png", {"jpg": jpeg(0), "mask.bin": b"another image"})
