"""Checkpoints that are read, changed and refused."""

import json
from dataclasses import replace

import pytest
import yaml

import datapipe
from datapipe import ImageSpec, PlanError, VideoMarkup
from datapipe.models.families import MODELS
from datapipe.testing import assert_same_batches
from tests.case_files import cases

from ..text.families import QWEN2_5
from .checkpoints import CASES
from .conftest import loader_of
from .table import table, written
from .tiny import TINY
from .videos import VIDEO_CASES

UNTRIED = {"glm4v_moe", "pixtral"}
"""Other names of models whose processor is compared."""

QWEN = CASES["Qwen/Qwen3-VL-8B-Instruct"]


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
    edit(folder / "processor_config.json", chat_template=QWEN2_5)
    assert datapipe.specs_for(folder)[1].template == QWEN2_5


def test_options_that_are_not_written_down_are_those_of_the_class(folder):
    (folder / "preprocessor_config.json").write_text("{}")
    image, _ = datapipe.specs_for(str(folder))
    expected = ImageSpec.preset("qwen2-vl", min_pixels=3136, max_pixels=1003520)
    assert replace(image, video=None) == expected


def test_specs_that_are_given_rule(folder, shards):
    image, text = datapipe.specs_for(folder)
    options = {"batch_size": 2, "num_workers": 0}
    small = replace(image, max_pixels=65536 * 2)
    bounded = replace(text, max_length=4000)
    assert_same_batches(
        datapipe.make_loader(shards, model=folder, image=small, text=bounded, **options),
        datapipe.make_loader(shards, image=small, text=bounded, **options),
    )
    batch = next(iter(datapipe.make_loader(shards, model=folder, image=None, **options)))
    assert "pixel_values" not in batch


def test_a_command_takes_a_model(folder, shards, run):
    line = ("plan", shards, "--model", folder, "--batch-size", 2)
    result = run(*line, "--json")
    assert result.exit_code == 0, result.stderr
    tokens = sum(
        int(batch["attention_mask"].sum())
        for batch in datapipe.make_loader(shards, model=folder, batch_size=2, num_workers=0)
    )
    assert json.loads(result.stdout)["tokens"] == tokens
    assert "more than 10 tokens" in run(*line, "--max-length", 10).stderr


CHANGED = {
    "qwen": VIDEO_CASES["qwen3_vl"],
    "llava": CASES["llava-hf/llava-1.5-7b-hf"],
    "siglip": CASES["llava-hf/llava-interleave-qwen-0.5b-hf"],
    "next": CASES["llava-hf/llava-v1.6-vicuna-7b-hf"],
    "lfm2": CASES["LiquidAI/LFM2-VL-450M"],
    "lighton": CASES["lightonai/LightOnOCR-1B-1025"],
    "cohere2": CASES["CohereLabs/command-a-vision-07-2025"],
    "llama4": CASES["meta-llama/Llama-4-Scout-17B-16E-Instruct"],
    "granite": CASES["ibm-granite/granite-4.0-3b-vision"],
    "aya": CASES["CohereLabs/aya-vision-8b"],
    "qianfan": CASES["baidu/Qianfan-OCR"],
    "onevision": TINY["llava_onevision"].case,
}


@pytest.mark.parametrize(("given", "message"), cases("models/refused_files"))
def test_files_that_cannot_be_followed_are_refused(tmp_path, given, message):
    name, file, content = given.split(" ", 2)
    path, changes = CHANGED[name].save(tmp_path, apart=True) / file, yaml.safe_load(content)
    if changes is None:
        path.unlink()
    elif isinstance(changes, str):
        path.write_text(changes)
    else:
        edit(path, **changes)
    with pytest.raises(PlanError, match=message) as error:
        datapipe.specs_for(tmp_path)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("Qwen/Qwen3-VL-8B-Instruct", "names of the Hugging Face Hub are not looked up"),
        (7, "the folder of a model's checkpoint, or a processor"),
        (object(), "neither the folder of a checkpoint nor a processor"),
        ("", "the folder of a model's checkpoint"),
        (__file__, "is not a folder; give its folder"),
    ],
    ids=["name", "number", "object", "nothing", "file"],
)
def test_what_is_no_model_is_refused(model, message, shards):
    with pytest.raises(PlanError, match=message):
        datapipe.make_loader(shards, model=model, batch_size=2)


KEPT = datapipe.CacheSpec("64MB", keep="decoded")
CUT = {"max_length": 40, "overlong": "truncate"}
NATIVE = {"image": ImageSpec(resize="native")}
STATIC = datapipe.PackSpec(4096, static_shapes=True, max_patches=4096)


def sides(widths, heights):
    return widths


@pytest.mark.parametrize(
    ("name", "options", "changes", "message"),
    [
        ("llama4", {"pack": 4100, "batch_size": 2}, {}, r"8,200 tokens, and TextSpec\(att"),
        ("gemma3", {"pack": 400}, {}, r"token_types=True.*give batch_size= or max_tok"),
        # Markup of images says nothing of them.
        ("pixtral", {"image": None}, {}, "images are left out"),
        ("pixtral", {"image": ImageSpec(size=64, patch=16)}, {},
         "resize='stretch' makes neither"),
        ("pixtral", {"image": ImageSpec(resize="native", mrope=True)}, {},
         r"and so does ImageSpec\(mrope=True\)"),
        ("pixtral", NATIVE, {"image_tokens": sides}, "and so does image_tokens=<function"),
        ("pixtral", NATIVE, {"image_tokens": 7}, "image_tokens=7 is one number"),
        # The form of an image depends on its sample.
        ("llava_onevision", {"cache": KEPT}, {}, "keep='decoded': pad_several.*keep='encoded'"),
        ("lfm2_vl", {"cache": KEPT}, {}, "keep='decoded': rows of resize='naflex' are padded"),
        ("lfm2_vl", {"pack": STATIC}, {}, "resize='naflex' batches have images of their own size"),
        ("llava_onevision", {}, CUT, "may leave one image of several.*'drop'"),
        ("llava_onevision", {}, {"image_tokens": 5}, "image_tokens=5"),
        ("llava_onevision", {}, {"image_tokens": sides}, "whether an image is alone"),
        # Frames of videos are parts of patches.
        ("qwen3_vl", {"cache": KEPT}, {},
         "keep='decoded': frames of videos are parts of patches; give keep='encoded' or 'auto'"),
        ("qwen3_vl", {"pack": STATIC}, {},
         "constant shapes of batches with ImageSpec.* with video=None each frame is an image"),
        ("qwen3_vl", {"batch_size": datapipe.BatchSpec(2, sample_patches=4000)}, {},
         "constant shapes"),
        ("qwen3_vl", {"decoder": "dali"}, {}, "resize='native' is not in DALI's graph.*'cpu'"),
        ("qwen3_vl", {}, {"video_markup": VideoMarkup(frames=3)},
         r"a patch of 3 frames, and ImageSpec\(temporal=2\) of 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_options_that_do_not_go_with_a_model_are_refused(
    name, options, changes, message, folders, shards, films
):
    if "decoder" in options:
        pytest.importorskip("nvidia.dali")
    text = replace(datapipe.specs_for(folders[name])[1], **changes)
    given = options if "pack" in options else {"batch_size": 2} | options
    with pytest.raises(PlanError, match=message):
        loader_of(films if name in VIDEO_CASES else shards, folders[name], text=text, **given)


def test_the_page_lists_the_models_that_are_compared():
    assert written() == table()
    known = {kind for kind, processors in MODELS.items() for _ in processors}
    assert {case.model_type for case in CASES.values()} | UNTRIED == known
