"""Prompts alone, for a model that answers them: no labels, padded on the left."""

from functools import partial

import pytest
from tokenizers import Tokenizer

import datapipe
from datapipe import ImageSpec, PlanError
from datapipe.testing import assert_resumes_exactly

from ..campaigns import rare
from .conftest import SAMPLES
from .pair_rows import assistant, loader_of, pack, photo, row, said, user

META = ("key", "valid", "images_per_sample")


@pytest.fixture
def load(packed, text):
    return loader_of(packed, partial(text, prompts=True), batch_size=4)


def texts_of(batch, tokenizer):
    """The text of each row without its padding, an image written once."""
    decoder = Tokenizer.from_file(str(tokenizer))
    rows = zip(batch["input_ids"], batch["attention_mask"].bool(), strict=True)
    found = [decoder.decode(ids[mask].tolist(), skip_special_tokens=False) for ids, mask in rows]
    return [text.replace("<image>" * 6, "<image>") for text in found]


def test_a_prompt_ends_where_its_answer_begins(load, tokenizer, caplog):
    with caplog.at_level("WARNING"):
        batch = next(iter(load(shuffle=False, meta=(*META, "num_items_in_batch"))))
    assert texts_of(batch, tokenizer) == [
        f"<|im_start|>user\n{'<image>' * images}What is number {number}?<|im_end|>\n"
        "<|im_start|>assistant\n"
        for number, images in enumerate(batch["images_per_sample"].tolist())
    ]
    assert batch.pop("num_items_in_batch") == 1
    assert batch.keys() - {*META} == {"pixel_values", "input_ids", "attention_mask"}
    assert "label" not in caplog.text


def test_prompts_are_padded_on_the_left(load):
    for batch in load(meta=META):
        assert (batch["attention_mask"].diff(dim=1) >= 0).all()
        assert (batch["attention_mask"][:, -1] == 1).all()
        assert (batch["input_ids"][batch["attention_mask"] == 0] == 0).all()
    image = ImageSpec.preset("qwen2-vl", max_pixels=4 * 28 * 28)
    batch = next(iter(load(image=image, spec={"image_tokens": "native"})))
    assert "position_ids" not in batch  # generate() counts them, padding left out


def test_a_limit_drops_prompts_by_the_plan(load, damaged):
    lengths = {
        key: int(mask.sum())
        for batch in load(meta=META)
        for key, mask in zip(batch["key"], batch["attention_mask"], strict=True)
    }
    limit = 24
    # Images of two samples are damaged, and none is decoded to count and to drop.
    spec = {"max_length": limit, "overlong": "drop"}
    kept = load(path=damaged, batch_size=1, spec=spec)
    assert len(kept) == sum(length <= limit for length in lengths.values()) < SAMPLES
    with pytest.raises(PlanError, match="do not fit"):
        load(spec={"max_length": limit})
    with pytest.raises(PlanError, match="overlong='truncate' would cut off the end of a prompt"):
        load(spec={"max_length": limit, "overlong": "truncate"})


def test_a_reward_has_the_fields_of_the_record(load, tmp_path):
    rows = [
        {"image": photo(n), "problem": said(n)[0], "solution": f"<answer>{n}</answer>", "level": n}
        for n in range(4)
    ]
    path = pack(tmp_path, rows)
    batch = next(iter(load(path=path, shuffle=False, meta=("solution", "level", "problem"))))
    assert batch["solution"] == [row["solution"] for row in rows]
    assert batch["level"] == [0, 1, 2, 3]
    assert "labels" not in batch


def test_earlier_answers_stay_and_the_last_one_or_both_of_a_pair_go(load, tokenizer, tmp_path):
    turns = [user("Hello"), assistant("Hi."), user("What is it?"), assistant("A cat.")]
    path = pack(tmp_path / "chats", [{"messages": turns}, {"messages": turns[:3]}])
    one, other = texts_of(next(iter(load(path=path, batch_size=2, shuffle=False))), tokenizer)
    assert one == other
    assert "Hi.<|im_end|>" in one
    assert one.endswith("What is it?<|im_end|>\n<|im_start|>assistant\n")
    path = pack(tmp_path / "pairs", [row("formatted", number) for number in range(4)])
    batch = next(iter(load(path=path, shuffle=False, meta=("chosen",))))
    assert texts_of(batch, tokenizer)[2].startswith(
        "<|im_start|>user\n<image>What is number 2?<|im_end|>"
    )
    assert batch["chosen"][0][0]["role"] == "assistant"


def test_a_template_of_the_tokenizer_begins_the_answer(load, tokenizer):
    template = (
        "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] | trim }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    batch = next(iter(load(spec={"template": template}, shuffle=False)))
    assert all(text.endswith("<|im_end|>[assistant]") for text in texts_of(batch, tokenizer))
    unnamed = template.partition("{% if add_generation_prompt")[0]
    with pytest.raises(PlanError, match=r"\[assistant\]'.* and only '<.im_end.>' behind a prompt"):
        load(spec={"template": unnamed})
    load(spec={"template": unnamed.replace("[{{ m['role'] }}]", "")})  # answers have no name


@pytest.mark.parametrize("options", [rare({}), {"max_tokens": 200, "epochs": 2}], ids=str)
def test_prompts_resume_exactly(load, options):
    assert_resumes_exactly(lambda **ranks: load(meta=META, **options, **ranks), stops=(0.3,))


def test_captions_have_no_prompt_and_prompts_are_neither_packed_nor_mixed(
    load, text, packed, tmp_path
):
    path = pack(tmp_path, [{"image": photo(n), "caption": f"a cat {n}"} for n in range(3)])
    with pytest.raises(PlanError, match="no conversation, so it has no prompt"):
        load(path=path)
    with pytest.raises(PlanError, match=r"pack=400 with TextSpec\(prompts=True\)"):
        load(pack=400, batch_size=None)
    both = {
        "asked": {"path": str(packed), "text": text(prompts=True)},
        "answered": {"path": str(packed), "text": text()},
    }
    with pytest.raises(PlanError, match="asked and answered have prompts alone and answers"):
        datapipe.make_loader(both, image=ImageSpec(size=28), batch_size=2)
