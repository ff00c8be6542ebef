from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from datapipe.errors import DecodeError, PlanError
from datapipe.text.encode import EncodedText, SampleText, TextEncoder
from datapipe.text.image_marks import mark_places
from datapipe.text.spec import TextSpec
from datapipe.text.truncate import IGNORE, expand

from .families import (
    FAMILIES,
    GEMMA,
    LLAMA_3,
    NAMED,
    PHI_3,
    QWEN2_5,
    QWEN2_VL,
    QWEN3,
    SMOLVLM,
    SPECIAL,
    TOKENIZERS,
    small_tokenizer,
    transformers_tokenizer,
)

QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


@cache
def named_tokenizer(name: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=small_tokenizer(name), **NAMED)


def make(
    template: str | Path | None = "chatml", name: str = "byte-level", **options: Any
) -> TextEncoder:
    tokenizer = named_tokenizer(name)
    options.setdefault("image_token", "<image>")
    return TextEncoder(TextSpec(tokenizer=tokenizer, template=template, **options))


def chat(*turns: tuple[str, str], images: int = 0) -> SampleText:
    return SampleText(
        None, {"messages": [{"role": role, "content": text} for role, text in turns]}, images
    )


def encoded(encoder: TextEncoder, sample: SampleText) -> EncodedText:
    (result,) = encoder.encode([sample])
    assert isinstance(result, EncodedText), result
    return result


def written(encoder: TextEncoder, sample: SampleText, learnt: bool = False) -> str:
    """What a sample says once each image is one token; or what of it is learnt."""
    text = encoded(encoder, sample)
    whole = expand(text, np.ones(len(text.image_at), np.int64), encoder.image_id)
    ids = whole.input_ids[whole.labels != IGNORE] if learnt else whole.input_ids
    tokenizer = encoder.spec.tokenizer.backend_tokenizer
    return str(tokenizer.decode(ids.tolist(), skip_special_tokens=False))


def reason(encoder: TextEncoder, sample: SampleText) -> str:
    (result,) = encoder.encode([sample])
    assert isinstance(result, DecodeError), result
    return result.reason


def test_llava_writes_the_conversation_of_llava_1_5() -> None:
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


def test_llava_begins_with_bos_where_the_tokenizer_puts_one() -> None:
    encoder = make("llava", "metaspace")
    text = encoded(encoder, chat(("user", "Hm?"), ("assistant", "Yes.")))
    whole = small_tokenizer("metaspace").encode("A chat between").ids
    assert text.tokens[: len(whole) - 1].tolist() == whole[:-1]
    assert text.tokens[0] == small_tokenizer("metaspace").token_to_id("<s>")
    assert text.trained[-1]
    assert text.tokens[-1] == encoder.eos_id


def test_a_caption_is_image_text_and_eos_all_learnt_but_bos() -> None:
    encoder = make("caption", "metaspace")
    tokenizer = small_tokenizer("metaspace")
    text = encoded(encoder, SampleText("A cat on a mat.", None, 2))
    after = tokenizer.encode("<image>A cat on a mat.", add_special_tokens=False).ids[1:]
    assert text.tokens.tolist() == [tokenizer.token_to_id("<s>"), *after, encoder.eos_id]
    assert text.image_at.tolist() == [1, 1]
    assert text.trained.tolist() == [False] + [True] * (len(after) + 1)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_caption_without_images_is_what_the_tokenizer_makes_of_it(name: str) -> None:
    encoder = make("caption", name)
    text = encoded(encoder, SampleText("A cat on a mat.", None, 0))
    assert text.tokens.tolist() == [
        *small_tokenizer(name).encode("A cat on a mat.").ids,
        encoder.eos_id,
    ]


def test_the_caption_of_a_conversation_is_what_the_assistant_says() -> None:
    encoder = make("caption")
    sample = chat(("human", "Describe it briefly.\n<image>"), ("gpt", "A cat."), images=1)
    assert written(encoder, sample) == "<image>A cat.</s>"


@pytest.mark.parametrize("marked", [True, False])
def test_images_without_marks_come_first(marked: bool) -> None:
    mark = "<image>\n<image>\n" if marked else ""
    sample = chat(("system", "S"), ("user", f"{mark}Compare."), ("assistant", "Equal."), images=2)
    assert "user\n<image>\n<image>\nCompare.<|im_end|>" in written(make(), sample)


@pytest.mark.parametrize("marked", [True, False])
def test_a_newline_after_a_mark_is_not_doubled_by_the_templates_own(marked: bool) -> None:
    mark = "<image>\n" if marked else ""
    sample = chat(("user", f"{mark}What?"), images=1)
    assert written(make(FAMILIES["llava"].template), sample) == "USER: <image>\nWhat? "


def test_a_newline_after_a_mark_stays_where_the_template_writes_none() -> None:
    encoder = make(QWEN2_VL, image_token="<|image_pad|>")
    assert written(encoder, chat(("user", "<image>\nWhat?"), images=1)).endswith(
        "user\n<|vision_start|><|image_pad|><|vision_end|>\nWhat?<|im_end|>\n"
    )


def test_a_caption_under_a_chat_template_answers_a_turn_of_images() -> None:
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


def test_a_document_keeps_its_images_between_its_texts() -> None:
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


def test_images_are_never_learnt_nor_what_stands_around_them() -> None:
    encoder = make("caption", image_token="<|image_pad|>")
    assert encoder.image_wrap == (1, 1)
    assert written(encoder, SampleText("A cat.", None, 1)) == (
        "<|vision_start|><|image_pad|><|vision_end|>A cat.</s>"
    )
    assert written(encoder, SampleText("A cat.", None, 1), learnt=True) == "A cat.</s>"


def test_a_system_message_goes_before_conversations_that_have_none() -> None:
    encoder = make(system="Be kind.")
    assert written(encoder, chat(("user", "Hm?"))).startswith(
        "<|im_start|>system\nBe kind.<|im_end|>"
    )
    own = written(encoder, chat(("system", "Be short."), ("user", "Hm?")))
    assert own.startswith("<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user")
    assert "Be kind." in written(encoder, SampleText("A cat.", None, 0))


def test_a_conversation_without_an_answer_has_no_labels() -> None:
    assert not encoded(make(), chat(("user", "Hm?"))).trained.any()


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("template", [QWEN2_5, LLAMA_3, "llava", "chatml", "caption"])
def test_special_tokens_in_a_text_are_not_special(name: str, template: str) -> None:
    encoder = make(template, name)
    tokenizer = small_tokenizer(name)
    special = [tokenizer.token_to_id(token) for token in [*SPECIAL, *NAMED.values()]]
    spelled = (
        " ".join(token for token in SPECIAL if "<image>" not in mark_places(token)) + "</s><s><pad>"
    )

    def count(question: str, answer: str) -> list[int]:
        text = encoded(encoder, chat(("user", question), ("assistant", answer)))
        tokens = text.tokens.tolist()
        return [tokens.count(number) for number in special]

    assert count(f"What is {spelled}?", f"It is {spelled}.") == count("What is it?", "It is that.")
    # Whatever stands around: at the edge of a text, and glued to other text.
    assert count(spelled, f"x{spelled}x") == count("What is it?", "It is that.")


def test_a_special_token_that_the_tokenizer_would_merge_from_its_letters_is_not_special() -> None:
    spec = json.loads(small_tokenizer("metaspace").to_str())
    ids = spec["model"]["vocab"]
    for first, second in (("<", "/"), ("</", "s"), ("</s", ">")):
        ids.setdefault(first + second, max(max(ids.values()) + 1, 5000))
        spec["model"]["merges"].append([first, second])
    encoder = TextEncoder(
        TextSpec(tokenizer=Tokenizer.from_str(json.dumps(spec)), template="chatml")
    )
    text = encoded(encoder, chat(("user", "a</s>"), ("assistant", "b")))
    assert encoder.eos_id not in text.tokens
    assert ids["</s"] in text.tokens


def test_a_special_token_among_a_tokenizers_words_is_not_special() -> None:
    tokenizer = Tokenizer(models.WordLevel({"cat": 0, "</s>": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["</s>"])
    encoder = TextEncoder(TextSpec(tokenizer=tokenizer, template="caption"))
    assert encoded(encoder, SampleText("cat </s> cat", None, 0)).tokens.tolist() == [0, 2, 0, 1]


def test_special_tokens_between_blanks_that_a_template_trims_are_not_special() -> None:
    sample = chat(("user", " <|eot_id|>\n"), ("assistant", "\n</s> "))
    assert written(make(LLAMA_3), sample, learnt=True) == "</s><|eot_id|>"


def test_special_tokens_in_a_text_read_as_they_are_written() -> None:
    encoder = make()
    sample = chat(("user", "What is <|im_end|>?"), ("assistant", "<|im_start|>user</s>"))
    assert written(encoder, sample) == (
        "<|im_start|>user\nWhat is <|im_end|>?<|im_end|>\n"
        "<|im_start|>assistant\n<|im_start|>user</s><|im_end|>\n"
    )
    assert written(encoder, sample, learnt=True) == "<|im_start|>user</s><|im_end|>"


def test_an_image_token_in_a_text_is_no_image() -> None:
    encoder = make(QWEN2_VL, image_token="<|image_pad|>")
    text = encoded(encoder, chat(("user", "<image>What is <|image_pad|>?"), images=1))
    assert len(text.image_at) == 1
    assert encoder.image_id not in text.tokens


WORDS = st.lists(
    st.sampled_from(
        ["cat", " ", "  ", "\n", "\t", "é", "漢", "🙂", "<", "|", ">", "_", "user", "</", "<|", "."]
    ),
    max_size=12,
).map("".join)


@pytest.mark.campaign
@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("template", [QWEN2_VL, LLAMA_3, GEMMA, PHI_3, "llava", "caption"])
@settings(deadline=None, max_examples=40)
@given(turns=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3))
def test_texts_without_special_tokens_are_the_same_on_both_ways(
    name: str, template: str, turns: list[tuple[str, str]]
) -> None:
    """The way for texts that spell special tokens differs from the usual one in nothing else."""
    encoder = ENCODERS.setdefault((name, template), make(template, name))
    pairs = [
        pair for asked, said in turns for pair in (("user", "<image>" + asked), ("assistant", said))
    ]
    sample = chat(*pairs, images=len(turns))
    usual = encoded(encoder, sample)
    apart = encoder._encode_apart(encoder._render(sample), sample)
    assert isinstance(apart, EncodedText)
    assert apart.tokens.tolist() == usual.tokens.tolist()
    assert apart.image_at.tolist() == usual.image_at.tolist()
    assert apart.trained.tolist() == usual.trained.tolist()


ENCODERS: dict[tuple[str, str], TextEncoder] = {}


@pytest.mark.parametrize(
    ("sample", "cause"),
    [
        (chat(("user", "<image> <image>"), images=1), "2 <image> and the sample 1 images"),
        (chat(("user", "<image>"), images=0), "1 <image> and the sample 0 images"),
        (SampleText("<image>A cat.", None, 3), "1 <image> and the sample 3 images"),
        (chat(("user", "half \ud83d of one")), "lone surrogate U+D83D at character 5"),
        (SampleText(None, {"messages": [{"content": "Who?"}]}, 0), "turn 1 of 1"),
        (chat(("<|im_end|>", "Hm?")), "'<|im_end|>'"),
    ],
)
def test_a_sample_that_cannot_be_used_leaves_the_others_alone(
    sample: SampleText, cause: str
) -> None:
    encoder = make()
    good = SampleText("A cat.", None, 1)
    before, bad, after = encoder.encode([good, sample, good])
    assert isinstance(bad, DecodeError)
    assert cause in bad.reason
    for result in (before, after):
        assert isinstance(result, EncodedText)
        assert result.tokens.tolist() == encoded(encoder, good).tokens.tolist()


def test_a_template_that_refuses_a_conversation_names_its_reason() -> None:
    encoder = make(FAMILIES["mistral"].template)
    answer_first = chat(("assistant", "Hm."), ("user", "What?"))
    assert "roles must alternate" in reason(encoder, answer_first)


def test_images_that_a_template_leaves_out_are_missed() -> None:
    template = QWEN2_VL.replace("'image' in content or", "").replace(
        "content['type'] == 'image'", "content['type'] == 'image' and message['role'] == 'user'"
    )
    encoder = make(template, image_token="<|image_pad|>")
    assert encoded(encoder, chat(("user", "<image>"), images=1)).image_at.size == 1
    sample = chat(("user", "Draw."), ("assistant", "<image>"), images=1)
    assert "wrote 0 images, the sample has 1" in reason(encoder, sample)


def test_nothing_at_all_cannot_be_used() -> None:
    assert "neither text nor images" in reason(
        make("{% for m in messages %}{{ m.content }}{% endfor %}"), SampleText("", None, 0)
    )


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


def test_marks_of_what_is_learnt_are_true_or_false() -> None:
    record = {"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]}
    assert "0.5" in reason(make(), SampleText(None, record, 0))


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


@pytest.mark.parametrize("template", [QWEN2_5, "chatml", "llava", "caption"])
def test_an_unknown_role_is_refused_by_name(template: str) -> None:
    assert "'narrator'" in reason(make(template), chat(("user", "a"), ("narrator", "b")))


@pytest.mark.parametrize("field", ["system", "system_prompt"])
def test_the_system_field_of_a_record_is_a_turn_that_is_not_learnt(field: str) -> None:
    record = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    sample = SampleText(None, {**record, field: "Be kind."}, 0)
    assert written(make(), sample).startswith("<|im_start|>system\nBe kind.<|im_end|>")
    assert "kind" not in written(make(), sample, learnt=True)


def test_a_system_turn_in_capitals_is_one() -> None:
    turns = [{"role": "System", "content": "Be kind."}, {"role": "User", "content": "a"}]
    record = {"messages": turns, "system": "Be curt."}
    assert written(make(), SampleText(None, record, 0)).count("system\n") == 1


@pytest.mark.parametrize(
    "place",
    ["<ImageHere>", "<IMG_CONTEXT>", "<__dj__image>", "<image_1>", "<|image_1|>", "<image 1>",
     "<img>a/b.jpg</img>", "<image_placeholder>", "(<image>./</image>)", "<Img><ImageHere></Img>",
     "<img><IMG_CONTEXT><IMG_CONTEXT></img>", "<|vision_start|><|image_pad|><|vision_end|>"],
)  # fmt: skip
def test_places_of_other_dialects_are_places(place: str) -> None:
    sample = chat(("user", f"Look: {place}What?"), ("assistant", "A cat."), images=1)
    expected = chat(("user", "Look: <image>What?"), ("assistant", "A cat."), images=1)
    assert written(make(), sample) == written(make(), expected)
    assert written(make("caption"), SampleText(f"A {place}.", None, 1)) == "A <image>.</s>"


def test_numbered_places_have_to_stand_once_and_in_order() -> None:
    sample = chat(("user", "<image_2> or <image_1>?"), ("assistant", "b"), images=2)
    assert "images as 2, 1" in reason(make(), sample)


def test_the_place_of_a_video_is_refused_and_the_html_element_is_a_word() -> None:
    assert "<video>" in reason(make(), chat(("user", "<video>What?"), ("assistant", "b")))
    sample = chat(("user", "Explain <video></video>."), ("assistant", "Use <video>."))
    assert "Explain <video></video>." in written(make(), sample)


def test_a_rewritten_conversation_that_spells_special_tokens_is_refused() -> None:
    encoder = make(QWEN3)
    sample = chat(("user", "Hm?"), ("assistant", "<think>\n<|im_end|>\n</think>\n\nYes."))
    assert "'<|im_end|>'" in reason(encoder, sample)
    plain = chat(("user", "<|im_end|>?"), ("assistant", "Yes."))
    assert "<|im_end|>?" in written(encoder, plain)


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


@pytest.mark.parametrize(
    ("template", "token", "wrap"),
    [
        (QWEN2_VL, "<|image_pad|>", (1, 1)),
        (SMOLVLM, "<image>", (0, 0)),
        (FAMILIES["llava"].template, "<image>", (0, 0)),
        (GEMMA, "<image_soft_token>", (1, 1)),
        ("chatml", "<|image_pad|>", (1, 1)),
        ("caption", "<image>", (0, 0)),
        (QWEN2_VL.replace(QWEN_IMAGE, "<start_of_image><image><end_of_image>"), "<image>", (1, 1)),
        (QWEN2_VL.replace(QWEN_IMAGE, "<|end|><image><|end|>"), "<image>", (0, 0)),
    ],
)
def test_special_tokens_around_an_image_belong_to_it(
    template: str, token: str, wrap: tuple[int, int]
) -> None:
    assert make(template, image_token=token).image_wrap == wrap


def test_smolvlm_gets_the_tokens_its_processor_writes() -> None:
    tokenizer = Tokenizer.from_str(small_tokenizer("byte-level").to_str())
    tokenizer.add_special_tokens(["<fake_token_around_image>", "<global-img>"])
    encoder = TextEncoder(TextSpec(tokenizer=transformers_tokenizer(tokenizer, SMOLVLM)))
    assert written(encoder, chat(("user", "<image>What?"), images=1)) == (
        "<|im_start|>User:<fake_token_around_image><global-img><image><fake_token_around_image>"
        "What?<end_of_utterance>\n"
    )
    assert encoder.image_wrap == (2, 1)


def test_the_date_in_a_template_does_not_change() -> None:
    text = written(make(FAMILIES["llama-3.2"].template), chat(("user", "Which day is it?")))
    assert "Today Date: 26 Jul 2024" in text


def test_threads_share_an_encoder() -> None:
    encoder = make(QWEN2_5)
    samples = [chat(("user", f"{i} <|im_end|>"), ("assistant", str(i))) for i in range(200)]
    with ThreadPoolExecutor(4) as pool:
        parallel = list(pool.map(lambda sample: encoded(encoder, sample).tokens.tolist(), samples))
    assert parallel == [encoded(encoder, sample).tokens.tolist() for sample in samples]


def test_an_encoder_survives_pickling() -> None:
    encoder = TextEncoder(
        TextSpec(tokenizer=small_tokenizer("byte-level"), template="chatml", image_token="<image>")
    )
    copy = pickle.loads(pickle.dumps(encoder))
    sample = SampleText("A cat.", None, 1)
    assert copy.digest == encoder.digest
    assert encoded(copy, sample).tokens.tolist() == encoded(encoder, sample).tokens.tolist()


def test_a_tokenizer_that_cannot_encode_a_text_fails_on_it_alone() -> None:
    tokenizer = Tokenizer(models.WordLevel({"cat": 0, "</s>": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["</s>"])
    encoder = TextEncoder(TextSpec(tokenizer=tokenizer, template="caption"))
    good, bad = encoder.encode([SampleText("cat", None, 0), SampleText("dog", None, 0)])
    assert isinstance(good, EncodedText)
    assert good.tokens.tolist() == [0, 1]
    assert isinstance(bad, DecodeError)
    assert "cannot encode" in bad.reason


def test_images_need_a_token_and_texts_alone_do_not() -> None:
    tokenizer = Tokenizer(models.WordLevel({"cat": 0, "</s>": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["</s>"])
    encoder = TextEncoder(TextSpec(tokenizer=tokenizer, template="caption"))
    assert encoder.image_id is None
    assert encoded(encoder, SampleText("cat", None, 0)).tokens.tolist() == [0, 1]
    with pytest.raises(PlanError, match="name it by image_token="):
        encoder.encode([SampleText("cat", None, 1)])


def digest(tokenizer: Any = None, **options: Any) -> str:
    options.setdefault("template", "chatml")
    tokenizer = tokenizer if tokenizer is not None else small_tokenizer("byte-level")
    return TextEncoder(TextSpec(tokenizer=tokenizer, **options)).digest


def test_the_digest_follows_what_decides_the_tokens(tmp_path: Path) -> None:
    base = digest()
    assert digest(image_tokens=64) == digest(max_length=9, overlong="drop") == base
    others = [
        digest(template="caption"),
        digest(template="llava"),
        digest(system="Be kind."),
        digest(image_token="<|image_pad|>"),
        digest(small_tokenizer("metaspace")),
    ]
    assert len({base, *others}) == len(others) + 1

    spec = json.loads(small_tokenizer("byte-level").to_str())
    spec["model"]["vocab"] = dict(reversed(spec["model"]["vocab"].items()))
    shuffled = tmp_path / "tokenizer.json"
    shuffled.write_text(json.dumps(dict(reversed(spec.items()))))
    assert digest(shuffled) == digest(str(shuffled)) == digest(tmp_path) == base

    cut = Tokenizer.from_str(small_tokenizer("byte-level").to_str())
    cut.enable_truncation(3)
    cut.enable_padding(length=512)
    assert digest(cut) == base
    assert (
        len(
            encoded(
                TextEncoder(TextSpec(tokenizer=cut, template="chatml")), chat(("user", "Hm?"))
            ).tokens
        )
        > 3
    )


def test_the_digest_of_a_template_file_is_that_of_its_text(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(QWEN2_5)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": QWEN2_5}))
    assert digest(template=QWEN2_5) == digest(template=tmp_path / "chat.jinja")
    assert digest(template=QWEN2_5) == digest(template=str(tmp_path / "tokenizer_config.json"))
