import json
import logging
import re

import pytest
import yaml
from tokenizers import Tokenizer, models

import datapipe
from datapipe.errors import PlanError
from datapipe.text.encode import TextEncoder
from datapipe.text.spec import TextSpec
from tests.case_files import cases

from .encoding import chat, encoded
from .families import FAMILIES, GEMMA, QWEN2_5, QWEN2_VL
from .small_tokenizers import small_tokenizer, transformers_tokenizer


@pytest.fixture
def folder(tmp_path):
    """A tokenizer's folder as transformers saves it."""
    transformers_tokenizer(small_tokenizer("byte-level"), QWEN2_5).save_pretrained(tmp_path)
    return tmp_path


def tokens(tokenizer, template=None):
    encoder = TextEncoder(TextSpec(tokenizer=tokenizer, template=template))
    return encoded(encoder, chat(("user", "Hm?"))).tokens.tolist()


@pytest.mark.parametrize(("options", "cause"), cases("text/refused_specs"))
def test_a_value_that_makes_no_sense_is_refused(options, cause):
    name, fields = re.fullmatch(r"(?:(\w+)\()?(.*?)\)?", options).groups()
    given = {} if name else {"tokenizer": "tokenizer.json"}
    with pytest.raises(PlanError, match=cause):
        getattr(datapipe, name or "TextSpec")(**given | yaml.safe_load(f"{{{fields}}}"))


def test_a_tokenizer_is_the_same_from_a_file_a_folder_and_an_object(folder):
    expected = tokens(transformers_tokenizer(small_tokenizer("byte-level"), QWEN2_5))
    assert tokens(folder) == tokens(str(folder)) == tokens(folder / "tokenizer.json") == expected
    assert tokens(small_tokenizer("byte-level"), QWEN2_5) == expected


@pytest.mark.parametrize("named", [False, True])
def test_a_chat_template_is_found_in_tokenizer_config(folder, named):
    expected = tokens(folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(PlanError, match="no chat template; give template='llava'"):
        tokens(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    templates = [
        {"name": "tool_use", "template": "{{ 1 }}"},
        {"name": "default", "template": QWEN2_5},
    ]
    config["chat_template"] = templates if named else QWEN2_5
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert tokens(folder) == expected
    # A processor's comes before the tokenizer's own, and its older file before the newer.
    (folder / "chat_template.jinja").write_text(QWEN2_5)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": QWEN2_VL}))
    assert tokens(folder) == tokens(small_tokenizer("byte-level"), QWEN2_VL)


def test_special_tokens_are_named_by_the_folder_or_known_by_their_usual_names(folder, caplog):
    ids = small_tokenizer("byte-level").token_to_id
    alone = TextSpec(tokenizer=small_tokenizer("byte-level"), template="chatml")
    with caplog.at_level(logging.INFO, "datapipe"):
        for spec in (TextSpec(tokenizer=folder), alone):
            assert not caplog.text
            encoder = TextEncoder(spec)
            assert (encoder.eos_id, encoder.pad_id) == (ids("</s>"), ids("<pad>"))
    assert "usual names" in caplog.text
    assert encoder.vocab_size == max(small_tokenizer("byte-level").get_vocab().values()) + 1
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["eos_token"] = {"content": "<|im_end|>", "special": True}
    config["pad_token"] = None
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    encoder = TextEncoder(TextSpec(tokenizer=folder))
    assert encoder.eos_id == encoder.pad_id == ids("<|im_end|>")


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"tokenizer": "no/such/model"}, "names of the Hugging Face Hub are not looked up"),
        ({"tokenizer": "a\0b"}, "give a path without NUL characters"),
        ({"tokenizer": object()}, "of type object"),
        ({"template": "vicuna"}, "'vicuna' is neither 'llava', 'chatml', 'caption'"),
        ({"template": "{% for m in messages %}"}, "not valid Jinja in line 1"),
        ({"template": "{{ 'always the same' }}"}, "shows nothing"),
        ({"template": None}, "has no chat template"),
        ({"template": GEMMA, "system": "Be kind."}, "System role not supported"),
        ({"image_token": "<picture>"}, "'<picture>' is not among"),
        ({"template": QWEN2_5 + "{{ messages.__class__.__mro__[1].__subclasses__() }}"}, "unsafe"),
        ({"template": QWEN2_VL.replace("<|image_pad|>", "<|image_pad|>" * 2)}, "2 times"),
    ],
)
def test_what_does_not_fit_together_is_refused(options, cause):
    given = {"tokenizer": small_tokenizer("byte-level"), "template": "chatml", **options}
    with pytest.raises(PlanError) as caught:
        TextEncoder(TextSpec(**given))
    assert cause in str(caught.value)


def test_chatml_needs_its_tokens():
    tokenizer = Tokenizer(models.WordLevel({"cat": 0, "[UNK]": 1}, unk_token="[UNK]"))
    with pytest.raises(PlanError, match=r"needs the token '<\|im_start\|>'"):
        TextEncoder(TextSpec(tokenizer=tokenizer, template="chatml"))
    for template in ("caption", "llava"):
        with pytest.raises(PlanError, match="eos_token"):
            TextEncoder(TextSpec(tokenizer=tokenizer, template=template))


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        *(("tokenizer.json", text, "not a tokenizer") for text in ("", "{", "[]", '{"model": {}}')),
        ("tokenizer.json", None, r"a folder needs a tokenizer\.json"),
        ("tokenizer_config.json", "{", r"tokenizer_config\.json is not JSON"),
    ],
)
def test_a_folder_with_missing_or_damaged_files_is_refused(folder, name, content, cause):
    (folder / name).unlink() if content is None else (folder / name).write_text(content)
    with pytest.raises(PlanError, match=cause):
        TextEncoder(TextSpec(tokenizer=folder, template="caption"))


UNENDED = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
ENDED = FAMILIES["qwen2.5-generation"].template
GENERATION = ENDED.replace("+ '<|im_end|>' }}{%- endgen", "}}{%- endgen")


@pytest.mark.parametrize("template", [UNENDED, GENERATION])
def test_a_template_without_a_learnt_end_of_turn_is_warned_of(caplog, template):
    TextEncoder(TextSpec(tokenizer=small_tokenizer("byte-level"), template=template))
    assert "where to stop" in caplog.text


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_templates_of_families_are_warned_of_where_they_end_no_answer(caplog, family):
    tokenizer = transformers_tokenizer(small_tokenizer("byte-level"), family.template)
    TextEncoder(TextSpec(tokenizer=tokenizer))
    assert len(caplog.messages) == ("<" not in family.end)  # LLaVA 1.5 and OneVision


def test_special_tokens_that_a_tokenizer_does_not_find_are_named():
    spec = json.loads(small_tokenizer("metaspace-legacy").to_str())
    for token in spec["added_tokens"]:
        token["normalized"] = True
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    with pytest.raises(PlanError, match='set "normalized": false'):
        TextEncoder(TextSpec(tokenizer=tokenizer, template="chatml"))
