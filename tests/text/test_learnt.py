"""Labels are what the assistant says, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from datapipe.text.encode import SampleText

from .encoding import chat, encoded, make, written
from .families import FAMILIES, LLAMA_3, QWEN2_5, QWEN2_VL, QWEN3
from .small_tokenizers import small_tokenizer


def test_images_are_never_learnt_nor_what_stands_around_them() -> None:
    encoder = make("caption", image_token="<|image_pad|>")
    assert encoder.image_wrap == (1, 1)
    assert written(encoder, SampleText("A cat.", None, 1)) == (
        "<|vision_start|><|image_pad|><|vision_end|>A cat.</s>"
    )
    assert written(encoder, SampleText("A cat.", None, 1), learnt=True) == "A cat.</s>"


def test_a_conversation_without_an_answer_has_no_labels() -> None:
    assert not encoded(make(), chat(("user", "Hm?"))).trained.any()


@pytest.mark.parametrize("template", [QWEN2_5, QWEN2_VL, LLAMA_3, QWEN3, "llava", "chatml"])
def test_an_empty_answer_has_no_label(template: str) -> None:
    sample = chat(
        ("user", "Hm?"), ("assistant", ""), ("user", "Well?"), ("assistant", "Yes."), images=0
    )
    learnt = written(make(template), sample, learnt=True)
    assert learnt.startswith("Yes.")
    assert learnt.count("Yes.") == 1
    ends = written(make(template), chat(("user", "Hm?"), ("assistant", "Yes.")), learnt=True)
    assert learnt == ends


@pytest.mark.parametrize("template", [QWEN2_5, QWEN2_VL, "llava", "chatml", "caption"])
@pytest.mark.parametrize("sample", [SampleText("", None, 1), SampleText(None, {"id": 7}, 1)])
def test_a_sample_without_text_has_no_label(template: str, sample: SampleText) -> None:
    encoder = make(template, image_token="<|image_pad|>" if template == QWEN2_VL else None)
    text = encoded(encoder, sample)
    assert not text.trained.any()
    assert len(text.image_at) == 1


@pytest.mark.parametrize("template", [QWEN2_5, QWEN2_VL, LLAMA_3, "llava", "chatml", "caption"])
@pytest.mark.parametrize(
    "flag", [{"weight": 0}, {"loss": False}, {"train_on_turn": False}, {"masked": True}]
)
def test_a_turn_that_is_marked_as_not_learnt_has_no_label(template: str, flag: dict) -> None:
    record = {
        "messages": [
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "First.", **flag},
            {"role": "user", "content": "Two?"},
            {"role": "assistant", "content": "Second.", "weight": 1},
        ]
    }
    learnt = written(make(template), SampleText(None, record, 0), learnt=True)
    assert "econd." in learnt  # nothing predicts the first token of a text
    assert "First." not in learnt


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "User", "content": "Hm?"}, {"role": "Assistant", "content": "Yes"}]},
        {"conversations": [{"from": "HUMAN", "value": "Hm?"}, {"from": "GPT", "value": "Yes"}]},
        {"conversation": [{"input": "Hm?", "output": "Yes"}]},
        {"texts": [{"user": "Hm?", "assistant": "Yes"}]},
        {"texts": [{"User": "Hm?", "Assistant": "Yes"}]},
        {"dialog": [{"question": "Hm?", "answer": "Yes"}]},
        {
            "messages": [
                {"role": "<|User|>", "content": "Hm?"},
                {"role": "<|Assistant|>", "content": "Yes"},
            ]
        },
    ],
)
def test_roles_and_layouts_of_every_spelling_are_learnt_alike(record: dict) -> None:
    plain = chat(("user", "Hm?"), ("assistant", "Yes"))
    for learnt in (False, True):
        expected = written(make(), plain, learnt=learnt)
        assert written(make(), SampleText(None, record, 0), learnt=learnt) == expected


@pytest.mark.parametrize("field", ["system", "system_prompt"])
def test_the_system_field_of_a_record_is_a_turn_that_is_not_learnt(field: str) -> None:
    record = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    sample = SampleText(None, {**record, field: "Be kind."}, 0)
    assert written(make(), sample).startswith("<|im_start|>system\nBe kind.<|im_end|>")
    assert "kind" not in written(make(), sample, learnt=True)


def test_a_label_takes_in_all_tokens_of_its_last_character() -> None:
    encoder = make("{% for m in messages %}{{ m.role + ':' + m.content + '\n' }}{% endfor %}")
    assert written(encoder, chat(("user", "Hm?"), ("assistant", "Yes🙂")), learnt=True) == "Yes🙂"


def test_a_turns_name_is_not_learnt_where_it_takes_the_blanks_of_the_answer_in() -> None:
    encoder = make(FAMILIES["phi-3"].template)
    text = encoded(encoder, chat(("user", "Hm?"), ("assistant", "\n Yes.")))
    name = small_tokenizer("byte-level").token_to_id("<|assistant|>")
    assert name in text.tokens
    assert name not in text.tokens[text.trained]


def test_a_label_ends_with_its_text_where_a_normalizer_drops_the_last_character() -> None:
    encoder = make(FAMILIES["onevision"].template, "unigram")
    sample = chat(("user", "Hm?"), ("assistant", "e\u0301"), ("user", "More?"))
    text = encoded(encoder, sample)
    last = int(np.flatnonzero(text.trained)[-1])
    end = small_tokenizer("unigram").token_to_id("<|im_end|>")
    assert text.tokens[last + 1] == end
