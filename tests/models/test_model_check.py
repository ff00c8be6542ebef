"""`datapipe check-model`: equal processors, and the first difference of others."""

import json
import re

import pytest
from PIL import Image

import datapipe

from .checkpoints import CASES, mostly_quick
from .conftest import Sample
from .video_processors import with_pillow

QWEN = CASES["Qwen/Qwen2-VL-7B-Instruct"]
LLAVA = CASES["llava-hf/llava-1.5-7b-hf"]


@pytest.mark.parametrize("source", mostly_quick(CASES, every=3))
def test_a_processor_that_is_followed_shows_no_difference(source, shards):
    with with_pillow():
        found = datapipe.check_model(CASES[source].make(), shards, samples=6)
    # LLaVA-OneVision's template begins an answer with `assistant \n`, and a prompt does not.
    labels = 0 if CASES[source].model_type == "llava_onevision" else 6
    assert found == datapipe.ModelCheck(samples=6, images=8, differences=(), labels=labels)


@pytest.mark.parametrize("case", [QWEN, LLAVA], ids=lambda case: case.source)
def test_a_line_that_ends_after_an_image_is_no_difference(case, packed_samples, crop):
    turns = [("user", "<image>\nWhat is this?"), ("assistant", "A cup.")]
    shards = packed_samples([Sample(turns, [crop("coffee.png", (90, 60), 0)])])
    assert datapipe.check_model(case.make(), shards).differences == ()


@pytest.mark.parametrize("case", [QWEN, LLAVA], ids=lambda case: case.source)
def test_labels_are_those_of_the_answers_that_are_learnt(case, tmp_path):
    asked = {"role": "user", "content": "What is it?"}
    answers = [{"content": "A cup.", "weight": 0}, {"content": ""}, {"content": "<image> A cup."}]
    end = [asked, {"role": "assistant", "content": "So it is."}]
    records = [
        {
            "messages": [asked, {"role": "assistant"} | first, *end],
            "images": ["0.png"] * first["content"].count("<image>"),
        }
        for first in answers
    ]
    Image.new("RGB", (56, 56)).save(tmp_path / "0.png")
    (tmp_path / "chats.json").write_text(json.dumps(records))
    datapipe.pack_dataset(tmp_path / "chats.json", tmp_path / "shards")
    found = datapipe.check_model(case.make(), tmp_path / "shards")
    assert found == datapipe.ModelCheck(samples=3, images=1, differences=(), labels=2)


class Other:
    """A processor whose options are not those that it names, or whose template says otherwise."""

    def __init__(self, case, rewrite=lambda text, *_: text, **changes):
        self.named, self.real, self.rewrite = case.make(), case.make(), rewrite
        for name, value in changes.items():
            images = self.real.image_processor
            setattr(images if hasattr(images, name) else self.real, name, value)
        self.image_processor, self.tokenizer = self.named.image_processor, self.named.tokenizer
        self.chat_template = self.named.chat_template
        self.__class__ = type(type(self.named).__name__, (type(self),), {})

    def __call__(self, **given):
        return self.real(**given)

    def apply_chat_template(self, messages, **options):
        text = self.real.apply_chat_template(messages, **options)
        return self.rewrite(text, messages, options.get("add_generation_prompt"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"chat_template": QWEN.template.replace("helpful", "useful")},
            r"token \d+ differs, of \d+ tokens and \d+ of the processor\n    datapipe   '",
        ),
        ({"size": {"shortest_edge": 3136, "longest_edge": 8000}}, r"token \d+ differs"),
        ({"image_mean": [0.1, 0.1, 0.1]}, r"100.00% of pixel_values differ by more than one"),
    ],
    ids=["template", "limit", "mean"],
)
def test_the_first_difference_is_shown(changes, message, shards):
    found = datapipe.check_model(Other(QWEN, **changes), shards, samples=3, where="images > 0")
    assert not found.is_equal
    assert re.match(f"00000000[0-9]: {message}", found.differences[0])


def test_labels_that_a_template_does_not_mean_are_shown(shards):
    def rewrite(text, _, asked):
        """As a template that writes the answer's first word before it is asked for."""
        return text[: -len("assistant\n")] if asked else text

    found = datapipe.check_model(Other(QWEN, rewrite), shards, samples=2, where="images > 0")
    assert not found.is_equal
    assert re.match(
        r"000000000: labels differ\n    datapipe   '.*'\n    processor  'assistant\\n.*<",
        found.differences[0],
    )


def test_samples_whose_labels_cannot_be_compared_are_not_counted(shards):
    def rewrite(text, messages, _):
        """As a template that marks the last turn."""
        return "1" * (len(messages) == 1) + text

    found = datapipe.check_model(Other(QWEN, rewrite), shards, samples=2)
    assert (found.samples, found.labels) == (2, 0)


def test_the_command_says_what_differs(tmp_path, shards, run):
    folder = LLAVA.save(tmp_path, apart=True)
    line = ("check-model", folder, shards, "--samples")
    result = run(*line, 4)
    assert (result.exit_code, result.stderr) == (0, "")
    said = "4 of 4 samples with 4 images are what the processor makes; labels of 4 were"
    assert said in result.stdout
    expected = {"samples": 2, "images": 1, "differences": [], "labels": 2}
    assert json.loads(run(*line, 2, "--json").stdout) == expected


def test_a_model_that_is_not_there_is_one_message(shards, run):
    result = run("check-model", "nowhere", shards)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: model 'nowhere' is not a folder")
