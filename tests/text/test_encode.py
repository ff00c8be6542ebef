"""The tokens of a sample are those of its template."""

import pytest

from datapipe.text.encode import SampleText

from .encoding import QWEN_IMAGE, chat, encoded, make, written
from .families import FAMILIES, GEMMA_3, QWEN2_VL
from .small_tokenizers import TOKENIZERS, small_tokenizer


def test_llava_writes_the_conversation_of_llava_1_5():
    encoder = make("llava", system="Be kind.")
    sample = chat(
        ("human", "<image>\nWhat is it?"),
        ("gpt", "A cat."),
        ("human", "Sure?"),
        ("gpt", "Yes."),
        images=1,
    )
    assert written(encoder, sample) == (
        "Be kind. USER: <image>\nWhat is it? ASSISTANT: A cat.</s>USER: Sure? ASSISTANT: Yes.</s>"
    )
    assert written(encoder, sample, learnt=True).replace(" ", "") == "Acat.</s>Yes.</s>"
    assert written(make("llava"), sample).startswith("A chat between a curious user and an")


def test_llava_begins_with_bos_where_the_tokenizer_puts_one():
    encoder = make("llava", "metaspace")
    text = encoded(encoder, chat(("user", "Hm?"), ("assistant", "Yes.")))
    whole = small_tokenizer("metaspace").encode("A chat between").ids
    assert text.tokens[: len(whole) - 1].tolist() == whole[:-1]
    assert text.tokens[0] == small_tokenizer("metaspace").token_to_id("<s>")
    assert text.trained[-1]
    assert text.tokens[-1] == encoder.eos_id


def test_a_caption_is_image_text_and_eos_all_learnt_but_bos():
    encoder = make("caption", "metaspace")
    tokenizer = small_tokenizer("metaspace")
    text = encoded(encoder, SampleText("A cat on a mat.", None, 2))
    after = tokenizer.encode("<image>A cat on a mat.", add_special_tokens=False).ids[1:]
    assert text.tokens.tolist() == [tokenizer.token_to_id("<s>"), *after, encoder.eos_id]
    assert text.image_at.tolist() == [1, 1]
    assert text.trained.tolist() == [False] + [True] * (len(after) + 1)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_caption_without_images_is_what_the_tokenizer_makes_of_it(name):
    encoder, ids = make("caption", name), small_tokenizer(name).encode("A cat on a mat.").ids
    text = encoded(encoder, SampleText("A cat on a mat.", None, 0))
    assert text.tokens.tolist() == [*ids, encoder.eos_id]
    said = chat(("human", "Describe it briefly.\n<image>"), ("gpt", "A cat."), images=1)
    assert written(make("caption"), said) == "<image>A cat.</s>"


@pytest.mark.parametrize("mark", ["<image>\n", ""])
def test_images_without_marks_come_first_on_lines_of_the_templates_own(mark):
    sample = chat(("user", f"{mark * 2}Compare."), ("assistant", "Equal."), images=2)
    assert "user\n<image>\n<image>\nCompare.<|im_end|>" in written(make(), sample)
    sample = chat(("user", f"{mark}What?"), images=1)
    assert written(make(FAMILIES["llava"].template), sample) == "USER: <image>\nWhat? "
    # Where a template writes no newline, that after a mark stays.
    qwen = written(make(QWEN2_VL, image_token="<|image_pad|>"), sample)
    assert qwen.endswith(f"user\n{QWEN_IMAGE}{mark[7:]}What?<|im_end|>\n")
    gemma = written(make(GEMMA_3, image_token="<image_soft_token>"), sample)
    assert gemma.endswith("<end_of_image>\n\nWhat?<end_of_turn>\n")


def test_a_caption_under_a_chat_template_answers_a_turn_of_images():
    encoder = make()
    expected = (
        "<|im_start|>user\n<image>\n<image><|im_end|>\n<|im_start|>assistant\nA cat.<|im_end|>\n"
    )
    assert written(encoder, SampleText("A cat.", None, 2)) == expected
    assert written(encoder, SampleText("<image>\n<image>\nA cat.", None, 2)) == expected
    assert written(encoder, SampleText("A cat.", None, 2), learnt=True) == "A cat.<|im_end|>"
    assert written(encoder, SampleText(None, {"caption": "A cat."}, 0)) == (
        "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\nA cat.<|im_end|>\n"
    )


def test_a_document_keeps_its_images_between_its_texts():
    record = {
        "texts": [None, "One.", None, None, "Two."],
        "images": ["a.jpg", None, "b.jpg", "c.jpg", None],
    }
    assert written(make("caption"), SampleText(None, record, 3)) == (
        "<image>\n\nOne.\n\n<image>\n\n<image>\n\nTwo.</s>"
    )
    assert written(make(), SampleText(None, record, 3)) == (
        "<|im_start|>user\n<image><|im_end|>\n<|im_start|>assistant\n"
        "One.\n\n<image>\n\n<image>\n\nTwo.<|im_end|>\n"
    )
    assert written(make(), SampleText(None, record, 3), learnt=True).replace("\n", "") == (
        "One.Two.<|im_end|>"
    )


def test_a_system_message_goes_before_conversations_that_have_none():
    encoder = make(system="Be kind.")
    kind = "<|im_start|>system\nBe kind.<|im_end|>"
    assert written(encoder, chat(("user", "Hm?"))).startswith(kind)
    assert written(encoder, SampleText("A cat.", None, 0)).startswith(kind)
    own = written(encoder, chat(("System", "Be short."), ("user", "Hm?")))
    assert own.startswith("<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user")
    turns = [{"role": "System", "content": "Be short."}, {"role": "User", "content": "a"}]
    record = {"messages": turns, "system": "Be curt."}
    assert written(make(), SampleText(None, record, 0)).count("system\n") == 1


@pytest.mark.parametrize(
    "place",
    ["<ImageHere>", "<IMG_CONTEXT>", "<__dj__image>", "<image_1>", "<|image_1|>", "<image 1>",
     "<img>a/b.jpg</img>", "<image_placeholder>", "(<image>./</image>)", "<Img><ImageHere></Img>",
     "<img><IMG_CONTEXT><IMG_CONTEXT></img>", "<|vision_start|><|image_pad|><|vision_end|>"],
)  # fmt: skip
def test_places_of_other_dialects_are_places(place):
    sample = chat(("user", f"Look: {place}What?"), ("assistant", "A cat."), images=1)
    expected = chat(("user", "Look: <image>What?"), ("assistant", "A cat."), images=1)
    assert written(make(), sample) == written(make(), expected)
    assert written(make("caption"), SampleText(f"A {place}.", None, 1)) == "A <image>.</s>"
