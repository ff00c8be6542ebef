"""The reference model learns the same from a sample wherever it stands: alone, padded, packed."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

import datapipe
from datapipe import ImageSpec, TextSpec
from examples.vlm.data.batches import IGNORE
from examples.vlm.data.texts import Vocabulary
from examples.vlm.model.config import ModelConfig, VisionConfig
from examples.vlm.model.inputs import cut, make_inputs
from examples.vlm.model.vlm import VLM

CONFIG = ModelConfig(
    vision=VisionConfig(
        width=16, layers=2, heads=2, patch=4, merge=2, image_size=16, max_pixels=640
    ),
    width=24,
    layers=2,
    heads=4,
    kv_heads=2,
)
WORDS = Vocabulary.of(None)
FIXED = {"image": ImageSpec(size=16, normalize="siglip"), "image_tokens": 4}
NATIVE = {
    "image": ImageSpec(
        resize="native", patch=4, merge=2, min_pixels=64, max_pixels=640, normalize="siglip"
    ),
    "image_tokens": "native",
}
FORMS = {"fixed": FIXED, "native": NATIVE}
KERNELS = ["split", "sdpa", "plain"]


def make_model(kernel, config=CONFIG, words=WORDS.size):
    """In float64, with weights so large that what attends to what is seen in the loss."""
    torch.manual_seed(0)
    model = VLM(config, words, WORDS.image_id, kernel)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    return model.double()


def load(shards, form, **options):
    text = TextSpec(tokenizer=WORDS.tokenizer, template="chatml", image_tokens=form["image_tokens"])
    meta = ("key", "valid", "num_items_in_batch")
    options = {"num_workers": 0, "meta": meta, "image": form["image"]} | options
    return datapipe.make_loader(shards, text=text, **options)


def doubled(batch):
    """A batch for a model in float64."""
    if "pixel_values" not in batch:
        return batch
    return batch | {"pixel_values": batch["pixel_values"].double()}


def losses_of(model, batch):
    return model(make_inputs(doubled(batch), CONFIG, model.kernel))


def by_key(model, batch):
    """Losses of the tokens of each sample, its padding left out."""
    losses = losses_of(model, batch)
    if "attention_mask" in batch:
        rows = losses.view(len(batch["key"]), -1)
        parts = [
            row[:length]
            for row, length in zip(rows, batch["attention_mask"].sum(1).tolist(), strict=True)
        ]
    else:
        bounds = batch["cu_seq_lens_q"].tolist()
        parts = [losses[a:b] for a, b in pairwise(bounds)]
    for key, part, valid in zip(batch["key"], parts, batch["valid"].tolist(), strict=False):
        if valid:
            yield key, part


def gradients(model, batches):
    """Of the summed loss of all samples."""
    model.zero_grad()
    for batch in batches:
        losses_of(model, batch).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


SHAPES = [
    {"batch_size": 5, "buckets": 2},
    {"pack": 300, "batch_size": 2},
    {"batch_size": 6},
    {"max_tokens": 700},
    {"pack": 300},
    {"pack": datapipe.PackSpec(256, multiple_of=16)},
    {"pack": datapipe.PackSpec(300, static_shapes=True, max_images=9)},
    {"pack": 400, "exclude": ["000000000"]},  # whose place in its pack is left empty
]


@cache
def losses_alone(shards, form, kernel):
    """Losses of each sample in a batch of its own."""
    model = make_model(kernel)
    with torch.no_grad():
        batches = load(shards, FORMS[form], batch_size=1)
        return dict(pair for batch in batches for pair in by_key(model, batch))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        *(("split", options) for options in SHAPES),
        *((kernel, options) for kernel in ("sdpa", "plain") for options in SHAPES[:2]),
    ],
    ids=str,
)
def test_losses_of_a_sample_are_those_it_has_alone(shards, form, kernel, options):
    pack = options.get("pack")
    if form == "native" and isinstance(pack, datapipe.PackSpec) and pack.static_shapes:
        options = options | {"pack": replace(pack, max_images=None, max_patches=300)}
    model, alone = make_model(kernel), losses_alone(shards, form, kernel)
    with torch.no_grad():
        batches = load(shards, FORMS[form], **options)
        seen = [pair for batch in batches for pair in by_key(model, batch)]
    assert sorted(key for key, _ in seen) == sorted(alone.keys() - options.get("exclude", []))
    for key, losses in seen:
        wanted = alone[key]
        torch.testing.assert_close(losses[: len(wanted)], wanted, rtol=1e-9, atol=1e-9)
        assert not losses[len(wanted) :].any()
        assert wanted.any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_of_packs_are_those_of_padded_batches_and_of_samples_one_by_one(
    shards, form, kernel
):
    model = make_model(kernel)
    alone, padded, packed = (
        gradients(model, load(shards, FORMS[form], **options))
        for options in ({"batch_size": 1}, {"batch_size": 7}, {"pack": 400})
    )
    assert alone.keys() == {name for name, _ in model.named_parameters()}
    for name, wanted in alone.items():
        assert wanted.any(), name
        torch.testing.assert_close(padded[name], wanted, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(packed[name], wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_batch_without_images_runs_the_encoder_all_the_same(shards, kernel):
    model = make_model(kernel)
    batch = next(b for b in load(shards, FIXED, batch_size=1) if "pixel_values" not in b)
    losses_of(model, batch).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any() != name.startswith(("vision", "projector")), name


def test_square_images_are_cut_as_native_ones_are():
    pixels = torch.randn(2, 3, 16, 16)
    wanted = [
        image[:, top + 4 * i : top + 4 * i + 4, left + 4 * j : left + 4 * j + 4].flatten()
        for image in pixels
        for top in (0, 8)
        for left in (0, 8)
        for i in (0, 1)
        for j in (0, 1)
    ]
    assert torch.equal(cut(pixels, CONFIG.vision), torch.stack(wanted))


@pytest.mark.parametrize("form", FORMS)
def test_every_patch_knows_its_row_and_column(shards, form):
    batch = next(iter(load(shards, FORMS[form], batch_size=8)))
    patches = make_inputs(batch, CONFIG, "split").patches
    grids = batch.get("image_grid_thw", torch.tensor([[1, 4, 4]] * len(batch["pixel_values"])))
    places = [
        (top + i, left + j)
        for _, down, across in grids.tolist()
        for top in range(0, down, 2)
        for left in range(0, across, 2)
        for i in (0, 1)
        for j in (0, 1)
    ]
    found = zip(patches.rows.tolist(), patches.columns.tolist(), strict=True)
    assert list(found) == places


SIGLIP = {"normalize": "siglip"}
SMALL = {"resize": "native", "patch": 4, "merge": 2, "min_pixels": 1024, "max_pixels": 4096}


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (ImageSpec(size=16), "uint8, and the encoder takes normalised values"),
        (ImageSpec(size=20, **SIGLIP), "20x20 pixels: this model takes squares"),
        (ImageSpec(size=(16, 24), **SIGLIP), "16x24 pixels"),
        (
            ImageSpec(**SMALL | SIGLIP | {"patch": 8}),
            "this model takes native patches of 48 values",
        ),
        (ImageSpec(**SMALL | SIGLIP), r"was made for 40; give ImageSpec\(max_pixels=640\)"),
    ],
)
def test_images_of_another_form_are_refused(shards, image, reason):
    tokens = "native" if image.resize == "native" else 4
    loader = load(shards, {"image": image, "image_tokens": tokens}, batch_size=8)
    with pytest.raises(ValueError, match=reason):
        make_inputs(next(iter(loader)), CONFIG, "split")


def test_texts_with_more_places_than_images_fill_are_refused(shards):
    loader = load(shards, FIXED | {"image_tokens": 5}, batch_size=8)
    model = make_model("split")
    with pytest.raises(ValueError, match="give TextSpec the model's image_tokens"):
        losses_of(model, next(iter(loader)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_patch_sees_all_of_its_image_and_no_other(shards, form, kernel):
    model = make_model(kernel)
    batch = next(iter(load(shards, FORMS[form], batch_size=8)))
    inputs = make_inputs(batch, CONFIG, kernel)
    patches = inputs.patches._replace(values=inputs.patches.values.double())
    first, second = patches.segments.bounds.tolist()[1:3]
    changed = patches.values.clone()
    changed[second - 1] += 1  # the last patch of the second image
    with torch.no_grad():
        was, now = (
            model.vision(patches._replace(values=values), kernel)
            for values in (patches.values, changed)
        )
    moved = (was != now).all(1).nonzero().flatten().tolist()
    assert moved == list(range(first, second))


def test_losses_in_parts_are_those_of_the_whole(shards):
    """With this many words, logits of 69 tokens are computed at a time."""
    model = make_model("split", words=60_000)
    batch = next(iter(load(shards, FIXED, pack=200)))
    seen = []
    model.head.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    parts = losses_of(model, batch)
    targets = make_inputs(batch, CONFIG, model.kernel).targets
    assert [len(x) for x in seen] == [69, 69, len(targets) - 2 * 69]
    parts.sum().backward()
    weight = model.head.weight.detach().requires_grad_()
    logits = torch.cat(seen[:3]) @ weight.T
    whole = functional.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="none")
    whole.sum().backward()
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(model.head.weight.grad, weight.grad)


def test_a_vision_config_says_what_is_wrong():
    with pytest.raises(ValueError, match="give 112"):
        VisionConfig(width=16, layers=1, heads=2, image_size=120)
    with pytest.raises(ValueError, match="a multiple of 4"):
        VisionConfig(width=18, layers=1, heads=3)
    with pytest.raises(ValueError, match="kv_heads 3 do not divide 4 heads"):
        ModelConfig(vision=CONFIG.vision, width=24, layers=1, heads=4, kv_heads=3)
