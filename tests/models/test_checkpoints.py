"""Checkpoints that are read, changed and refused."""

import json
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

import datapipe
from datapipe import ImageSpec, PlanError
from datapipe.cli.command import app
from datapipe.models.families import MODELS
from datapipe.testing import assert_same_batches

from .checkpoints import CASES
from .table import table, written

UNTRIED = {"glm4v_moe", "pixtral"}
"""Other names of models whose processor is compared."""

QWEN = CASES["Qwen/Qwen3-VL-8B-Instruct"]
LLAVA = CASES["llava-hf/llava-1.5-7b-hf"]


@pytest.fixture
def folder(tmp_path):
    return QWEN.save(tmp_path / "model", apart=True)


def edit(path, **changes):
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | changes))


def test_options_are_those_of_the_files(folder):
    edit(folder / "preprocessor_config.json", patch_size=14, min_pixels=4000, max_pixels=100_000)
    image, text = datapipe.specs_for(folder)
    assert (image.patch, image.min_pixels, image.max_pixels) == (14, 4000, 100_000)
    assert (image.normalize, image.interpolation, image.mrope) == ("siglip", "bicubic", True)
    assert (text.tokenizer, text.image_token) == (folder, "<|image_pad|>")


def test_options_that_are_not_written_down_are_those_of_the_class(folder):
    (folder / "preprocessor_config.json").write_text("{}")
    image, _ = datapipe.specs_for(str(folder))
    expected = ImageSpec.preset("qwen2-vl", min_pixels=3136, max_pixels=1003520)
    assert replace(image, video=None) == expected


def test_specs_that_are_given_rule(folder, shards):
    image, text = datapipe.specs_for(folder)
    options: dict[str, Any] = {"batch_size": 2, "num_workers": 0}
    small = replace(image, max_pixels=65536 * 2)
    bounded = replace(text, max_length=4000)
    assert_same_batches(
        datapipe.make_loader(shards, model=folder, image=small, text=bounded, **options),
        datapipe.make_loader(shards, image=small, text=bounded, **options),
    )
    batch = next(iter(datapipe.make_loader(shards, model=folder, image=None, **options)))
    assert "pixel_values" not in batch


@pytest.mark.campaign
def test_runs_resume_exactly(folder, shards):
    datapipe.testing.assert_resumes_exactly(
        lambda **options: datapipe.make_loader(
            shards, model=folder, pack=20_000, meta=("key", "valid"), **options
        )
    )


def test_a_command_takes_a_model(folder, shards):
    result = CliRunner().invoke(
        app, ["plan", str(shards), "--model", str(folder), "--batch-size", "2", "--json"]
    )
    assert result.exit_code == 0, result.stderr
    tokens = sum(
        int(batch["attention_mask"].sum())
        for batch in datapipe.make_loader(shards, model=folder, batch_size=2, num_workers=0)
    )
    assert json.loads(result.stdout)["tokens"] == tokens
    result = CliRunner().invoke(
        app,
        ["plan", str(shards), "--model", str(folder), "--batch-size", "2", "--max-length", "10"],
    )
    assert "more than 10 tokens" in result.stderr


IMAGES, CONFIG = "preprocessor_config.json", "config.json"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (IMAGES, None, "has no preprocessor_config.json or processor_config.json"),
        ("tokenizer.json", None, "has no tokenizer.json"),
        (CONFIG, {"model_type": "bert"}, "model_type 'bert' with processor 'Qwen3VLProcessor' is "
         "not one of the known models: qwen2_vl"),
        (CONFIG, {"model_type": "llava"}, "model_type 'llava' with processor 'Qwen3VLProcessor'"),
        (CONFIG, "{", r"config.json is not JSON"),
        (CONFIG, "[]", r"config.json holds no JSON object"),
        (IMAGES, {"resample": 0}, "resized with the filter nearest"),
        (IMAGES, {"do_resize": False}, "do_resize=false"),
        (IMAGES, {"rescale_factor": 1.0}, "multiplied by 1.0, not by 1/255"),
        (IMAGES, {"patch_size": "14"}, "patch '14'"),
        (IMAGES, {"size": 7}, "unknown form"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused(folder, name, content, message):
    if content is None:
        (folder / name).unlink()
    elif isinstance(content, str):
        (folder / name).write_text(content)
    else:
        edit(folder / name, **content)
    with pytest.raises(PlanError, match=message) as error:
        datapipe.specs_for(folder)
    assert str(folder) in str(error.value) or "patch" in message


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("Qwen/Qwen3-VL-8B-Instruct", "names of the Hugging Face Hub are not looked up"),
        (7, "the folder of a model's checkpoint, or a processor"),
        (object(), "neither the folder of a checkpoint nor a processor"),
        ("", "the folder of a model's checkpoint"),
    ],
    ids=["name", "number", "object", "nothing"],
)
def test_what_is_no_model_is_refused(model, message, shards):
    with pytest.raises(PlanError, match=message):
        datapipe.make_loader(shards, model=model, batch_size=2)


def test_a_file_is_no_folder(folder):
    with pytest.raises(PlanError, match="is not a folder; give its folder"):
        datapipe.specs_for(folder / "config.json")


def test_an_image_processor_of_another_kind_is_refused(tmp_path):
    folder = LLAVA.save(tmp_path, apart=True)
    edit(folder / IMAGES, image_processor_type="ViTImageProcessor")
    with pytest.raises(PlanError, match="ViTImageProcessor is neither CLIPImageProcessor nor"):
        datapipe.specs_for(folder)


def test_the_page_lists_the_models_that_are_compared():
    assert written() == table()
    known = {kind for kind, processors in MODELS.items() for _ in processors}
    assert {case.model_type for case in CASES.values()} | UNTRIED == known
