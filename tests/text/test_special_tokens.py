"""Special tokens mean something only where a template or an image puts them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from datapipe.text.encode import SampleText, TextEncoder
from datapipe.text.image_marks import mark_places
from datapipe.text.spec import TextSpec

from .encoding import QWEN_IMAGE, chat, encoded, make, of_words, reason, written
from .families import FAMILIES, GEMMA, GEMMA_3, LLAMA_3, PHI_3, QWEN2_5, QWEN2_VL, QWEN3, SMOLVLM
from .small_tokenizers import NAMED, SPECIAL, TOKENIZERS, small_tokenizer, transformers_tokenizer


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("template", [QWEN2_5, LLAMA_3, "llava", "chatml", "caption"])
def test_special_tokens_in_a_text_are_not_special(name, template):
    encoder = make(template, name)
    tokenizer = small_tokenizer(name)
    special = [tokenizer.token_to_id(token) for token in [*SPECIAL, *NAMED.values()]]
    spelled = (
        " ".join(token for token in SPECIAL if "<image>" not in mark_places(token)) + "</s><s><pad>"
    )

    def count(question, answer):
        text = encoded(encoder, chat(("user", question), ("assistant", answer)))
        tokens = text.tokens.tolist()
        return [tokens.count(number) for number in special]

    assert count(f"What is {spelled}?", f"It is {spelled}.") == count("What is it?", "It is that.")
    # Whatever stands around: at the edge of a text, and glued to other text.
    assert count(spelled, f"x{spelled}x") == count("What is it?", "It is that.")


def test_a_special_token_that_the_tokenizer_would_merge_from_its_letters_is_not_special():
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


def test_a_special_token_among_a_tokenizers_words_is_not_special():
    encoder = of_words("cat", "</s>", "[UNK]")
    assert encoded(encoder, SampleText("cat </s> cat", None, 0)).tokens.tolist() == [0, 2, 0, 1]


def test_special_tokens_between_blanks_that_a_template_trims_are_not_special():
    sample = chat(("user", " <|eot_id|>\n"), ("assistant", "\n</s> "))
    assert written(make(LLAMA_3), sample, learnt=True) == "</s><|eot_id|>"


def test_special_tokens_in_a_text_read_as_they_are_written():
    encoder = make()
    sample = chat(("user", "What is <|im_end|>?"), ("assistant", "<|im_start|>user</s>"))
    assert written(encoder, sample) == (
        "<|im_start|>user\nWhat is <|im_end|>?<|im_end|>\n"
        "<|im_start|>assistant\n<|im_start|>user</s><|im_end|>\n"
    )
    assert written(encoder, sample, learnt=True) == "<|im_start|>user</s><|im_end|>"


def test_an_image_token_in_a_text_is_no_image():
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
@pytest.mark.parametrize("template", [QWEN2_VL, LLAMA_3, GEMMA, PHI_3, "llava"])
@settings(deadline=None, max_examples=15)
@given(turns=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3))
def test_texts_without_special_tokens_are_the_same_on_both_ways(name, template, turns):
    """The way for texts that spell special tokens differs from the usual one in nothing else."""
    encoder = make(template, name)
    pairs = [
        pair for asked, said in turns for pair in (("user", "<image>" + asked), ("assistant", said))
    ]

    def begin(text):
        """What the turns become in front of one that says `text`."""
        whole = encoded(encoder, chat(*pairs, ("user", text), images=len(turns)))
        return whole.tokens[:length].tolist(), whole.trained[:length].tolist(), [*whole.image_at]

    length = len(encoded(encoder, chat(*pairs, images=len(turns))).tokens) - 1
    assert begin("a") == begin("a <pad>")


def test_a_rewritten_conversation_that_spells_special_tokens_is_refused():
    encoder = make(QWEN3)
    sample = chat(("user", "Hm?"), ("assistant", "<think>\n<|im_end|>\n</think>\n\nYes."))
    assert "'<|im_end|>'" in reason(encoder, sample)
    plain = chat(("user", "<|im_end|>?"), ("assistant", "Yes."))
    assert "<|im_end|>?" in written(encoder, plain)


@pytest.mark.parametrize(
    ("template", "token", "wrap"),
    [
        (QWEN2_VL, "<|image_pad|>", (1, 1)),
        (SMOLVLM, "<image>", (0, 0)),
        (FAMILIES["llava"].template, "<image>", (0, 0)),
        (GEMMA, "<image_soft_token>", (1, 1)),
        (GEMMA_3, "<image_soft_token>", (1, 1)),
        ("chatml", "<|image_pad|>", (1, 1)),
        ("caption", "<image>", (0, 0)),
        (QWEN2_VL.replace(QWEN_IMAGE, "<start_of_image><image><end_of_image>"), "<image>", (1, 1)),
        (QWEN2_VL.replace(QWEN_IMAGE, "<|end|><image><|end|>"), "<image>", (0, 0)),
    ],
)
def test_special_tokens_around_an_image_belong_to_it(template, token, wrap):
    assert make(template, image_token=token).image_wrap == wrap


def test_an_image_is_written_as_the_processor_of_smolvlm_does():
    tokenizer = Tokenizer.from_str(small_tokenizer("byte-level").to_str())
    tokenizer.add_special_tokens(["<fake_token_around_image>", "<global-img>"])
    given = transformers_tokenizer(tokenizer, SMOLVLM)
    encoder = TextEncoder(TextSpec(tokenizer=given, image_token="<image>"))
    assert written(encoder, chat(("user", "<image>What?"), images=1)) == (
        "<|im_start|>User:<fake_token_around_image><global-img><image>"
        "<fake_token_around_image>What?<end_of_utterance>\n"
    )
    assert encoder.image_wrap == (2, 1)
