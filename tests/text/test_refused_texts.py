"""Samples that cannot be encoded are refused with the reason, and alone."""

import pytest

from datapipe.errors import DecodeError, PlanError
from datapipe.text.encode import SampleText

from .encoding import chat, encoded, make, of_words, reason, written
from .families import FAMILIES, QWEN2_5, QWEN2_VL

HALF_LEARNT, MASKED = (
    SampleText(None, {"messages": [{"role": "gpt", "content": "a", **flag}]}, 0)
    for flag in ({"weight": 0.5}, {"mask": "true"})
)
NARRATED = chat(("user", "a"), ("narrator", "b"))
CONTENTS = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("sample", "cause", "template"),
    [
        (
            chat(("user", "<image> <image>"), images=1),
            "2 <image> and the sample 1 image",
            "chatml",
        ),
        (chat(("user", "<image>"), images=0), "1 <image> and the sample 0 images", "chatml"),
        (SampleText("<image>A cat.", None, 3), "1 <image> and the sample 3 images", "chatml"),
        (chat(("user", "half \ud83d of one")), "lone surrogate U+D83D at character 5", "chatml"),
        (SampleText(None, {"messages": [{"content": "Who?"}]}, 0), "turn 1 of 1", "chatml"),
        (chat(("<|im_end|>", "Hm?")), "'<|im_end|>'", "chatml"),
        (chat(("user", "<image_2> or <image_1>?"), images=2), "images as 2, 1", "chatml"),
        (HALF_LEARNT, "0.5", "chatml"),
        (MASKED, "'true'", "chatml"),
        (chat(("user", "<video>What?"), ("assistant", "b")), "<video>", "chatml"),
        (chat(("assistant", "a"), ("user", "b")), "must alternate", FAMILIES["mistral"].template),
        (SampleText("", None, 0), "neither text nor images", CONTENTS),
        *((NARRATED, "'narrator'", name) for name in (QWEN2_5, "chatml", "llava", "caption")),
    ],
)
def test_a_sample_that_cannot_be_used_leaves_the_others_alone(sample, cause, template):
    encoder = make(template)
    good = chat(("user", "Hm?"), ("assistant", "A cat."))
    before, bad, after = encoder.encode([good, sample, good])
    assert isinstance(bad, DecodeError)
    assert cause in bad.reason
    for result in (before, after):
        assert result.tokens.tolist() == encoded(encoder, good).tokens.tolist()


def test_images_that_a_template_leaves_out_are_missed():
    template = QWEN2_VL.replace("'image' in content or", "").replace(
        "content['type'] == 'image'", "content['type'] == 'image' and message['role'] == 'user'"
    )
    encoder = make(template, image_token="<|image_pad|>")
    assert encoded(encoder, chat(("user", "<image>"), images=1)).image_at.size == 1
    sample = chat(("user", "Draw."), ("assistant", "<image>"), images=1)
    assert "wrote 0 images, the sample has 1" in reason(encoder, sample)


def test_the_html_element_of_a_video_is_a_word():
    sample = chat(("user", "Explain <video></video>."), ("assistant", "Use <video>."))
    assert "Explain <video></video>." in written(make(), sample)


def test_a_tokenizer_that_cannot_encode_a_text_fails_on_it_alone():
    encoder = of_words("cat", "</s>")
    good, bad = encoder.encode([SampleText("cat", None, 0), SampleText("dog", None, 0)])
    assert good.tokens.tolist() == [0, 1]
    assert "cannot encode" in bad.reason
    # Without a token for images, texts alone can be encoded.
    assert encoder.image_id is None
    with pytest.raises(PlanError, match="name it with image_token="):
        encoder.encode([SampleText("cat", None, 1)])
