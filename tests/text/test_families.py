"""Agreement with transformers on chat templates of real model families."""

import json
from pathlib import Path

import numpy as np
import pytest

from datapipe.text.truncate import IGNORE

from .encoding import chat, expanded, make
from .families import FAMILIES, QWEN3, Family, messages
from .small_tokenizers import TOKENIZERS, small_tokenizer, transformers_tokenizer

CASES, IMAGES, REASONING = json.loads(
    Path(__file__).with_name("conversations.json").read_text("utf-8")
).values()
PAIRS = [
    (name, case)
    for name, family in FAMILIES.items()
    for case, turns in CASES.items()
    if family.system or turns[0][0] != "system"
]
"""Families with the cases that they have a place for."""
WITH_IMAGES = [(name, case) for name in FAMILIES for case in IMAGES]


tokenizers = pytest.mark.parametrize("tokenizer", TOKENIZERS)


def encode(tokenizer, template, turns, image_token=None):
    """The turns with every image as one token."""
    images = sum(text.count("<image>") for _, text in turns)
    encoder = make(template, tokenizer, image_token=image_token)
    return expanded(encoder, chat(*turns, images=images))


def transformers(tokenizer, family, turns):
    """What transformers makes of them: ids, and its assistant mask where there is one."""
    given = transformers_tokenizer(small_tokenizer(tokenizer), family.template)
    theirs = given.apply_chat_template(
        messages(turns, family),
        return_dict=True,
        return_assistant_tokens_mask=family.generation,
        date_string="26 Jul 2024",
    )
    return theirs["input_ids"], theirs.get("assistant_masks")


@tokenizers
@pytest.mark.parametrize(("name", "case"), PAIRS + WITH_IMAGES)
def test_ids_and_labels_are_those_of_transformers(tokenizer, name, case):
    family, turns = FAMILIES[name], (CASES | IMAGES)[case]
    # Templates of strings have the images of a text in it, as tokens.
    image = (family.image or "<image>") if case in IMAGES else None
    ours = encode(tokenizer, family.template, turns, image)
    ids, mask = transformers(tokenizer, family, turns)
    assert ours.input_ids.tolist() == ids
    if mask is not None:
        assert (ours.labels != IGNORE).astype(int).tolist() == mask
    same = FAMILIES.get(f"{name}-generation")
    if same is not None:  # what its template does not say, the other one does
        assert ours.labels.tolist() == encode(tokenizer, same.template, turns).labels.tolist()


@pytest.mark.parametrize(
    ("name", "case"), [pair for pair in PAIRS if not FAMILIES[pair[0]].generation]
)
def test_without_generation_blocks_answers_and_their_ends_are_learnt(name, case):
    family, turns = FAMILIES[name], CASES[case]
    ours = encode("byte-level", family.template, turns)
    answers = [
        (text if family.whole else text.strip()) + family.end
        for role, text in turns
        if role == "assistant"
    ]
    said = ours.input_ids[ours.labels != IGNORE]
    text = small_tokenizer("byte-level").decode(said.tolist(), skip_special_tokens=False)
    # A blank before an answer may be in the answer's first token, or in Phi-3's turn's name.
    assert "".join(text.split()) == "".join("".join(answers).split())
    assert np.array_equal(ours.labels[ours.labels != IGNORE], said)


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ("one turn", "<think>\nHm.\n</think>\n\nBecause.<|im_end|>"),
        ("two turns", "Because.<|im_end|><think>\nOh.\n</think>\n\nSo.<|im_end|>"),
    ],
)
def test_a_template_that_moves_reasoning_is_learnt_as_it_is_written(turns, said):
    ours = encode("byte-level", QWEN3, REASONING[turns])
    expected, _ = transformers("byte-level", Family(template=QWEN3), REASONING[turns])
    assert ours.input_ids.tolist() == expected
    labels = ours.labels[ours.labels != IGNORE].tolist()
    assert small_tokenizer("byte-level").decode(labels, skip_special_tokens=False) == said
