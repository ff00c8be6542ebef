"""Records that need more than text and images: refused by name, never packed as text alone."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe import pack_dataset
from datapipe.errors import DecodeError, PackError
from datapipe.text.conversation import conversation

from .chats import llava, question, text
from .layouts.table import Has


def image(url):
    return {"type": "image_url", "image_url": {"url": url, "image_wh": [8, 8]}}


OTHER = [
    # VILA, LLaMA-Omni, NeMo
    (llava("<sound>\nWhat is it?", sound="a.wav"), "record has `sound`"),
    (llava("<image>\n<speech>", image="a.jpg", speech=["a.wav"]), "record has `speech`"),
    (llava("What do you hear?", sound="a.wav"), "record has `sound`"),
    (llava("<sound>What?", sound="clip-17"), "<sound> for what `sound` holds"),
    (llava("<vila/video>What?"), "a video (<vila/video>)"),
    (llava("Summarize it.", pdf="a.pdf"), "record has `pdf`"),
    (question("<file>\nSummarize.", file={"name": "a.pdf"}), "record has `file`"),
    (question("Summarize.", attachments=[{"url": "https://a.b/c.docx"}]), "has `attachments`"),
    (question("What happens?", video_path="a.mp4"), "record has `video_path`"),
    (question("<file>Fix it.", file="src/main.py"), "<file> for what `file` holds"),
    # PixMo, ms-swift, SpatialRGPT
    (question("Where?", "Here <|POINT|>.", image="a.jpg", points=[[{"x": 1, "y": 2}]]),
     "<|POINT|> for what `points` holds"),
    (question("What is at <point>?", image="a.jpg", point=[0.1, 0.2]), "<point> for what `point`"),
    (question("<image>Find <ref-object>.", images=["a.jpg"], objects={"ref": ["a cat"]}),
     "<ref-object> for what `objects` holds"),
    (question("<image> <depth> How far?", image="a.jpg", depth_path="d.png"),
     "<depth> for what `depth_path` holds"),
    (question("<image><Mask_1> What?", image="a.jpg", masks=["m.png"]),
     "<Mask_1> for what `masks`"),
    # Parts of messages: OpenAI, vLLM, Qwen-Omni
    (question([{"type": "file", "file": {"file_id": "a"}}, text("?")]), "has a part (file)"),
    (question([{"type": "video_url", "video_url": {"url": "a.mp4"}}]), "has a part (video_url)"),
    (question([{"audio": "a.wav"}, {"text": "What?"}]), "has a part (audio)"),
    # Kimi-Audio, Mi:dm
    ({"messages": [{"role": "user", "message_type": "audio", "content": "a.wav"},
                   {"role": "assistant", "message_type": "text", "content": "Hm."}]},
     "turn 1 has 'message_type': 'audio'"),
    ({"conversations": [{"from": "human", "value": "<speech>", "path": "a.wav"},
                        {"from": "gpt", "value": "Hm."}]}, "turn 1 has `path`"),
]  # fmt: skip


@pytest.mark.parametrize("good", [llava("1+1?"), question("1+1?")])
def test_records_with_another_medium_are_rejected(reasons_of, good):
    expected = [(record, Has(why)) for record, why in OTHER if record.keys() & good.keys()]
    assert reasons_of(good, *(record for record, _ in expected)) == [why for _, why in expected]


WORDS = [
    question("What does <point> mean?", "A <point> in HTML."),
    question("Where?", '<point x="1" y="2" alt="cat">cat</point>', image="a.jpg", points=[[1, 2]]),
    question("Explain <sound>x</sound> and `<depth>`.", image="a.jpg", depth="d.png"),
    question("Is it List<Item> or Map<Key>?", items=[{"id": 1}], key={"a": 1}),
    question("Run git clone <url> or cat <path>.", image="a.jpg", url="https://a.b/c"),
    question("Write to <email>.", image="a.jpg", email="a@cats.org"),
    question("Open <website>, then read <title>.", website="https://a.b", title="Booking.com"),
    question("Rate it as <score>.", scores=[1, 2], label=3),
    question("<image>Which page is it?", image="a.jpg", pdf="a.pdf", video_path="a.mp4"),
    question("Who wrote it?", document="Cats sleep. Dogs bark.", file="notes.txt"),
    question("What was said?", speech="Four score and seven years ago"),
    question("Hello <name>!", name={"first": "A"}, sound=None, files=[]),
    question([{"text": "Fix it.", "file": "main.py"}]),
]


def test_words_and_origins_are_no_media(reasons_of):
    assert reasons_of(question("1+1?"), *WORDS) == [None] * len(WORDS)


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
    assert "3 <image> places for 1 images" in said
    for record, (content, expected) in zip(records, XTUNER, strict=True):
        images = sum("image_url" in part for part in content)
        assert conversation(record, images=images)[0].text == expected


def test_sound_in_a_column_of_bytes_is_rejected(tmp_path, rejects):
    row = {"question": "What is it?", "answer": "A dog.", "sound": b"RIFF"}
    pq.write_table(pa.Table.from_pylist([row, row | {"sound": None}]), tmp_path / "data.parquet")
    pack_dataset(tmp_path / "data.parquet", tmp_path / "out", max_rejects="100%")
    (line,) = rejects(tmp_path / "out")
    assert line["reason"] == "record has `sound`; only text and images are supported"


def test_json_in_tars_is_held_to_the_same_rule(tmp_path, make_tar, jpeg, rejects):
    heard = question([{"type": "input_audio", "input_audio": {"data": "UklG"}}, text("What?")])
    marked = {"text": "A dog barks <sound>.", "sound": "a.wav"}
    members = [(f"{n}.json", json.dumps(r).encode()) for n, r in enumerate((heard, marked))]
    make_tar(tmp_path / "raw" / "0.tar", [*members, ("c.jpg", jpeg(2)), ("2.txt", b"a cat")])
    pack_dataset(tmp_path / "raw", tmp_path / "out", max_rejects="100%")
    said = [line["reason"] for line in rejects(tmp_path / "out")]
    assert ["(input_audio)" in said[0], "<sound> for what `sound`" in said[1]] == [True, True]


def test_a_part_of_sound_is_named_in_a_conversation_that_a_loader_reads():
    with pytest.raises(DecodeError, match=r"turn 1 has a part \(audio\)"):
        conversation(question([{"type": "audio", "audio": "a.wav"}, text("What?")]))


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ({"caption": "A dog barks."}, "pack the text alone with --image-column ''"),
        ({"question": "What is it?", "answer": "A dog."}, "to pack the text alone, remove it"),
    ],
)
def test_a_table_of_sound_says_what_would_pack(tmp_path, text, remedy):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(text | {"sound": "a.wav"}))
    with pytest.raises(PackError) as caught:
        pack_dataset(path, tmp_path / "out")
    assert str(caught.value).endswith(
        f"the column 'sound' names videos or sound, and only text and images are packed; {remedy}"
    )
