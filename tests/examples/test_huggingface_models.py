"""Models of Hugging Face learn from padded and packed batches what they learn one by one."""

import sys
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer

import datapipe
from datapipe.text.encode import TextEncoder

from ..models.losses import META, assert_losses, loss_of, losses_alone

pytest.importorskip("transformers")

from examples import huggingface_models as example

pytestmark = pytest.mark.campaign


def text_of(name):
    tokens = example.FAMILIES[name].image_tokens
    return datapipe.TextSpec(
        tokenizer=example.byte_tokenizer(), template="chatml", image_tokens=tokens
    )


def image_of(name):
    """A spec of fewer pixels where sizes are free, so that these small images differ in grids."""
    image = example.FAMILIES[name].image
    return replace(image, min_pixels=28**2) if image.resize == "native" else image


def loader_of(shards, name, **options):
    options = {"image": image_of(name), "meta": META, "num_workers": 0} | options
    return datapipe.make_loader(shards, text=text_of(name), **options)


class Model:
    """A model in float64 whose attention matters, and the summed losses of samples by key."""

    def __init__(self, name, attention, shards):
        self.name = name
        torch.manual_seed(0)
        encoder = TextEncoder(text_of(name))
        self.module = example.FAMILIES[name].build(encoder, example.TINY, attention)
        for parameter in self.module.parameters():
            if parameter.ndim > 1:  # weights as small as by default hide what attends to what
                torch.nn.init.normal_(parameter, std=0.15)
        self.module.double().eval()
        one_each = loader_of(shards, name, batch_size=1, shuffle=False)
        self.alone = losses_alone(self.module, one_each)

    def gradients(self, loader):
        """Of the summed loss of all samples."""
        self.module.zero_grad()
        for batch in loader:
            (loss_of(self.module, batch) * batch["num_items_in_batch"]).backward()
        return {
            name: parameter.grad.clone()
            for name, parameter in self.module.named_parameters()
            if parameter.grad is not None
        }


@pytest.fixture(
    scope="module",
    params=[(name, attention) for name in example.FAMILIES for attention in ("sdpa", "eager")],
    ids="-".join,
)
def model(request, shards):
    return Model(*request.param, shards)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 5},
        {"max_tokens": 600},
        {"pack": 300},
        {"pack": 256, "batch_size": 2},
        {"pack": datapipe.PackSpec(320, multiple_of=8)},
        {"batch_size": 3, "where": "images == 0"},
        {"pack": 200, "where": "images == 0"},
        {"batch_size": 3, "where": "images == 2"},
        {"pack": 512, "where": "images == 2"},
    ],
    ids=str,
)
def test_the_loss_of_a_batch_is_that_of_its_samples_one_by_one(model, shards, options):
    batches = list(loader_of(shards, model.name, **options))
    samples = {"images == 0": 6, "images == 2": 4}.get(options.get("where"), 25)
    assert_losses(model.module, batches, model.alone, samples)
    assert samples != 6 or not any("pixel_values" in batch for batch in batches)


def test_gradients_of_an_epoch_are_those_of_its_samples_one_by_one(model, shards):
    expected = model.gradients(loader_of(shards, model.name, batch_size=1))
    assert any("vision" in name or "visual" in name for name in expected)
    # The loss is float32, and gradients such as those of a key's bias are 0 but for its rounding.
    rounding = 1e-6 * max(float(gradient.norm()) for gradient in expected.values())
    for options in ({"batch_size": 6}, {"pack": 400}):
        found = model.gradients(loader_of(shards, model.name, **options))
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            error = float((found[name] - gradient).norm())
            assert error < 1e-4 * float(gradient.norm()) + rounding, f"{name} with {options}"


def test_packs_of_constant_shape_are_taken_by_smolvlm(shards):
    model = Model("smolvlm", "sdpa", shards)
    options = {"pack": datapipe.PackSpec(512, max_images=6, static_shapes=True)}
    for samples, more in ((25, {}), (6, {"where": "images == 0"})):
        batches = list(loader_of(shards, "smolvlm", **options, **more))
        shapes = {(len(batch["pixel_values"]), batch["input_ids"].shape[1]) for batch in batches}
        assert shapes == {(6, 512)}
        assert_losses(model.module, batches, model.alone, samples)


def test_the_tokenizer_spells_any_text():
    tokenizer = example.byte_tokenizer()
    text = "Grüße, 世界\n\x00 \U0001f40d"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("<image>").ids == [tokenizer.token_to_id("<image>")]


def test_a_tokenizer_without_a_token_for_images_is_refused():
    bare = Tokenizer(example.byte_tokenizer().model)
    bare.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    spec = datapipe.TextSpec(tokenizer=bare, template="chatml")
    for family in example.FAMILIES.values():
        with pytest.raises(ValueError, match="no token that is repeated for an image; add one"):
            family.build(TextEncoder(spec), example.TINY, "sdpa")


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, ("--pack", "512")) for name in example.FAMILIES), ("llava", ("--batch-size", "4"))],
    ids=str,
)
def test_the_command_prints_losses_of_steps_that_fall(shards, name, options, capsys):
    example.main([str(shards), "--family", name, "--steps", "12", *options])
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith(f"{name}: ")
    steps = [line.split() for line in lines]
    assert [step[:3] for step in steps] == [["step", str(n), "loss"] for n in range(1, 13)]
    losses = [float(step[3]) for step in steps]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])


def test_the_command_line_says_plainly_what_is_missing(shards, tmp_path, monkeypatch):
    missing, tokenizer = str(tmp_path / "none"), str(tmp_path / "tokenizer.json")
    for arguments, said in (
        ([missing], f"IndexMismatch: .*{missing}"),
        ([str(shards), "--tokenizer", tokenizer], f"PlanError: .*{tokenizer}"),
        ([str(shards), "--pack", "0"], "PlanError: pack 0"),
    ):
        with pytest.raises(SystemExit, match=said):
            example.main(arguments)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SystemExit, match="pip install transformers"):
        example.main([str(shards)])
