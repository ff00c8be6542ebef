"""Labels are what the assistant says as the template writes it, and nothing else."""

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from datapipe.text.encode import SampleText, TextEncoder
from datapipe.text.spec import TextSpec

from .encoding import QWEN_IMAGE, chat, encoded, make, written
from .families import FAMILIES, LLAMA_3, QWEN2_5, QWEN2_VL, QWEN3, template
from .small_tokenizers import small_tokenizer

PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
SYSTEM = "{{ '<|im_start|>system\nYou are a test.<|im_end|>\n' }}"


def chatml(content):
    """A template of ChatML that writes contents in its own way, without a generation prompt."""
    return (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ "
        + content
        + " }}{{ '<|im_end|>\n' }}{% endfor %}"
    )


COPY = chatml("m.content")
TRIM = chatml("m.content.strip()")
STRIP = chatml("m.content.split('</think>')[-1].strip()")
UPPER = chatml("m.content | upper")
QWEN3_WITHOUT_PROMPT = QWEN3[: QWEN3.index("{%- if add_generation_prompt")]
# Nothing stands between turns, and the beginning of an answer stands at the end.
ALWAYS_PROMPTS = COPY.replace("|>\n'", "|>'") + "{{ '<|im_start|>assistant\n' }}"
GENERATION = template("chatml-generation")
DEEPSEEK = template("deepseek-r1")  # the prompt begins the reasoning that is taken out of answers
GLM = template("glm-4.5")  # each answer has its reasoning, or a sign that there is none, and no end

PLAIN = chat(("user", "Why?"), ("assistant", "Because."), ("user", "How?"), ("assistant", "So."))
THINKS_FIRST = (("user", "Why?"), ("assistant", "<think>\nHm.\n</think>\n\nBecause."))
THOUGHT = ("assistant", "<think>Oh.</think>So.")
THINKS = chat(*THINKS_FIRST, ("user", "How?"), THOUGHT)
FIRST_THINKS = chat(*THINKS_FIRST, ("user", "How?"), ("assistant", "So."))
TOOL = chat(("user", "Why?"), ("assistant", "call"), ("tool", "42"), THOUGHT)
ENDED = "Because.<|im_end|>So.<|im_end|>"


@pytest.mark.parametrize("begin", ["", SYSTEM], ids=["bare", "system"])
@pytest.mark.parametrize("end", ["", PROMPT], ids=["no prompt", "prompt"])
@pytest.mark.parametrize(
    ("template", "sample", "learnt"),
    [
        (COPY, PLAIN, ENDED),
        (TRIM, PLAIN, ENDED),
        (STRIP, PLAIN, ENDED),
        (STRIP, THINKS, ENDED),
        (STRIP, FIRST_THINKS, ENDED),
        (STRIP, TOOL, "call<|im_end|>So.<|im_end|>"),
        (UPPER, PLAIN, ENDED.upper().replace("IM_END", "im_end")),
        (ALWAYS_PROMPTS, PLAIN, ENDED),
        (GENERATION, PLAIN, ENDED),
        (GENERATION, THINKS, ENDED),
    ],
)
def test_answers_and_their_ends_are_learnt_and_no_turns_name(template, begin, end, sample, learnt):
    assert written(make(begin + template + end), sample, learnt=True) == learnt


@pytest.mark.parametrize("template", [QWEN3, QWEN3_WITHOUT_PROMPT], ids=["prompt", "no prompt"])
def test_reasoning_that_a_template_moves_is_learnt_and_what_it_adds_is_not(template):
    encoder = make(template)
    moved = "<think>\nOh.\n</think>\n\nSo.<|im_end|>"
    assert written(encoder, THINKS, learnt=True) == f"Because.<|im_end|>{moved}"
    assert written(encoder, TOOL, learnt=True) == f"call<|im_end|>{moved}"
    assert "<think>\n\n</think>\n\nSo." in written(encoder, FIRST_THINKS)
    assert written(encoder, FIRST_THINKS, learnt=True) == ENDED


@pytest.mark.parametrize(
    ("template", "field"),
    [
        *((template, "reasoning_content") for template in (QWEN3, GENERATION, DEEPSEEK, GLM)),
        *(("chatml", field) for field in ("reasoning_content", "reasoning", "thinking")),
    ],
)
def test_reasoning_apart_from_an_answer_is_learnt_as_reasoning_in_it(template, field):
    apart, within = (
        chat(("user", "Why?"), ("assistant", said))
        for said in ("So.", "<think>\nOh.\n</think>\n\nSo.")
    )
    apart.record["messages"][0]["reasoning"] = "They ask."
    apart.record["messages"][1] |= {"reasoning": "", field: "Oh.\n"}
    for learnt in (False, True):
        expected = written(make(template), within, learnt=learnt)
        assert written(make(template), apart, learnt=learnt) == expected
    for said in (within.record["messages"][1]["content"], "Thought: Oh. Answer: So."):
        within.record["messages"][1]["content"] = apart.record["messages"][1]["content"] = said
        assert written(make(template), apart) == written(make(template), within)


LAST_ENDS_OTHERWISE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% if loop.last %}{{ '</s>' }}{% else %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
)
NAMES = "{% for m in messages %}{{ m.role + ':' + m.content + '\n' }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "sample", "learnt"),
    [
        # A prompt that no answer begins with does not hide the answers.
        (DEEPSEEK, PLAIN, "Because.</s>So.</s>"),
        (DEEPSEEK, THINKS, "Because.</s>So.</s>"),
        # Answers have no end. Special tokens of a turn's name take in the blanks before an answer.
        (GLM, PLAIN, "Because.So."),
        (GLM, THINKS, "Because.<think>Oh.</think>\nSo."),
        (LAST_ENDS_OTHERWISE, PLAIN, "Because.<|im_end|>So.</s>"),
        # A label takes in all tokens of its last character.
        (NAMES, chat(("user", "Hm?"), ("assistant", "Yes🙂")), "Yes🙂"),
    ],
)
def test_answers_are_learnt_as_far_as_a_template_writes_them(template, sample, learnt):
    assert written(make(template), sample, learnt=True) == learnt


@pytest.mark.parametrize(
    "template",
    [
        *(COPY, TRIM, STRIP, UPPER, GENERATION, QWEN3, QWEN3_WITHOUT_PROMPT, GLM),
        *(QWEN2_5, QWEN2_VL, LLAMA_3, "chatml"),
    ],
)
@pytest.mark.parametrize("empty", ["", " \n"])
def test_an_empty_answer_has_no_label(template, empty):
    encoder = make(template)
    both = chat(("user", "Why?"), ("assistant", empty), ("user", "How?"), ("assistant", empty))
    assert not encoded(encoder, both).trained.any()
    first = chat(("user", "Why?"), ("assistant", empty), ("user", "How?"), ("assistant", "So."))
    alone = chat(("user", "How?"), ("assistant", "So."))
    assert written(encoder, first, learnt=True) == written(encoder, alone, learnt=True)


@pytest.mark.parametrize("template", [STRIP, STRIP + PROMPT, GENERATION, QWEN3, DEEPSEEK, GLM])
def test_an_answer_of_which_a_template_leaves_nothing_has_no_label(template):
    encoder = make(template)
    alone = (("user", "How?"), ("assistant", "So."))
    sample = chat(("user", "Why?"), ("assistant", "<think>Hm.</think>"), *alone)
    assert written(encoder, sample, learnt=True) == written(encoder, chat(*alone), learnt=True)


@pytest.mark.parametrize("image", ["<image>", "<|image_pad|>"])
@pytest.mark.parametrize("template", [COPY, TRIM, STRIP, QWEN3, QWEN2_VL, LLAMA_3, "chatml"])
def test_the_end_of_an_answer_is_learnt_behind_an_image_too(template, image):
    encoder = make(template, image_token=image)
    more = (("user", "How?"), ("assistant", "So."))
    learnt = [
        encoded(encoder, chat(("user", "Why?"), ("assistant", said), *more, images=images))
        for said, images in (("See:<image><image>", 2), ("See:", 0))
    ]
    behind, plain = (text.tokens[text.trained].tolist() for text in learnt)
    around = set(encoder.ids(QWEN_IMAGE)) if template == "chatml" else set()
    assert [token for token in behind if token not in around] == plain


@pytest.mark.parametrize("template", ["caption", "chatml", "llava", STRIP, QWEN3])
@pytest.mark.parametrize("token", ["<s>", "</s>", "<|im_end|>", "<|endoftext|>", "<pad>"])
def test_special_tokens_in_a_caption_are_words(template, token):
    encoder = make(template)
    number = small_tokenizer("byte-level").token_to_id(token)
    spelt = encoded(encoder, SampleText(f"A {token} sign.", None, 0)).tokens.tolist()
    plain = encoded(encoder, SampleText("A sign.", None, 0)).tokens.tolist()
    assert spelt.count(number) == plain.count(number)
    assert f" {token} sign." in written(encoder, SampleText(f"A {token} sign.", None, 0))


def test_a_token_that_is_named_but_not_called_special_is_a_word_in_a_caption(tmp_path):
    tokenizer = Tokenizer.from_str(small_tokenizer("byte-level").to_str())
    tokenizer.add_tokens([AddedToken("<|stop|>", special=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|stop|>"}')
    encoder = TextEncoder(TextSpec(tokenizer=tmp_path, template="caption"))
    text = encoded(encoder, SampleText("A <|stop|> sign.", None, 0))
    assert text.tokens.tolist().count(tokenizer.token_to_id("<|stop|>")) == 1


def test_images_are_never_learnt_nor_what_stands_around_them():
    encoder = make("caption", image_token="<|image_pad|>")
    assert encoder.image_wrap == (1, 1)
    assert written(encoder, SampleText("A cat.", None, 1)) == (
        "<|vision_start|><|image_pad|><|vision_end|>A cat.</s>"
    )
    assert written(encoder, SampleText("A cat.", None, 1), learnt=True) == "A cat.</s>"


@pytest.mark.parametrize("template", [QWEN2_5, QWEN2_VL, "llava", "chatml", "caption"])
@pytest.mark.parametrize("sample", [SampleText("", None, 1), SampleText(None, {"id": 7}, 1)])
def test_a_sample_without_text_has_no_label(template, sample):
    encoder = make(template, image_token="<|image_pad|>" if template == QWEN2_VL else None)
    text = encoded(encoder, sample)
    assert not text.trained.any()
    assert len(text.image_at) == 1


@pytest.mark.parametrize(
    "template",
    [QWEN2_5, QWEN2_VL, LLAMA_3, "llava", "chatml", "caption", STRIP, GENERATION, QWEN3, DEEPSEEK],
)
@pytest.mark.parametrize(
    "flag",
    [
        *({"weight": 0}, {"loss": False}, {"train_on_turn": False}, {"masked": True}),
        {"weight": 1, "loss": False},
    ],
)
def test_a_turn_that_is_marked_as_not_learnt_has_no_label(template, flag):
    turns = chat(*THINKS_FIRST, ("user", "Two?"), ("assistant", "Second.")).record["messages"]
    record = {
        "messages": [
            turns[0],
            turns[1] | flag,
            turns[2],
            turns[3] | {"weight": 1, "mask": "of_an_image.png"},
        ]
    }
    learnt = written(make(template), SampleText(None, record, 0), learnt=True)
    assert "econd." in learnt  # nothing predicts the first token of a text
    assert "Because." not in learnt
    assert "Hm." not in learnt


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "User", "content": "Hm?"}, {"role": "Assistant", "content": "Yes"}]},
        {"conversations": [{"from": "HUMAN", "value": "Hm?"}, {"from": "GPT", "value": "Yes"}]},
        {"conversation": [{"input": "Hm?", "output": "Yes"}]},
        {"texts": [{"user": "Hm?", "assistant": "Yes"}]},
        {"texts": [{"User": "Hm?", "Assistant": "Yes"}]},
        {"dialog": [{"question": "Hm?", "answer": "Yes"}]},
        {"messages": [{"role": "<|User|>", "content": "Hm?"},
                      {"role": "<|Assistant|>", "content": "Yes"}]},
    ],
)  # fmt: skip
def test_roles_and_layouts_of_every_spelling_are_learnt_alike(record):
    plain = chat(("user", "Hm?"), ("assistant", "Yes"))
    for learnt in (False, True):
        expected = written(make(), plain, learnt=learnt)
        assert written(make(), SampleText(None, record, 0), learnt=learnt) == expected


@pytest.mark.parametrize("field", ["system", "system_prompt"])
def test_the_system_field_of_a_record_is_a_turn_that_is_not_learnt(field):
    record = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    sample = SampleText(None, {**record, field: "Be kind."}, 0)
    assert written(make(), sample).startswith("<|im_start|>system\nBe kind.<|im_end|>")
    assert "kind" not in written(make(), sample, learnt=True)


def test_a_label_ends_with_its_text_where_a_normalizer_drops_the_last_character():
    encoder = make(FAMILIES["onevision"].template, "unigram")
    sample = chat(("user", "Hm?"), ("assistant", "e\u0301"), ("user", "More?"))
    text = encoded(encoder, sample)
    last = int(np.flatnonzero(text.trained)[-1])
    end = small_tokenizer("unigram").token_to_id("<|im_end|>")
    assert text.tokens[last + 1] == end
