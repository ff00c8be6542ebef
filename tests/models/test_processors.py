"""Batches of every known model are what its processor in transformers makes."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel
from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

import datapipe
from datapipe.loader.schedule.options import IMAGE_KEYS

from ..decode.fitted import levels_apart
from .checkpoints import CASES, mostly_quick
from .conftest import loader_of
from .tiny import TINY
from .video_processors import with_pillow

FACTS = [name for name in IMAGE_KEYS if not name.startswith("pixel_values")]

pytestmark = pytest.mark.usefixtures("rows_first")


def learnt(case, processor, text, ids):
    """Labels of a sample, found in its text by a regular expression: -100 or the token.

    Args:
        text: as the template writes it, with one token for each image.
        ids: of the processor, with all tokens of images.
    """
    tokenizer = processor.tokenizer
    if whole := getattr(processor, "full_image_sequence", ""):
        text = text.replace(processor.image_token, whole)
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    spans = [match.span(1) for match in re.finditer(case.answer, text, re.DOTALL)]
    # Some templates write another token than the one that is repeated.
    repeated = getattr(processor, "img_patch_token", processor.image_token)
    written = getattr(processor, "image_placeholder_token", processor.image_token)
    image, place = (
        None if whole else tokenizer.convert_tokens_to_ids(token) for token in (repeated, written)
    )
    labels = []
    before = None
    for number, (start, stop) in zip(found["input_ids"], found["offset_mapping"], strict=True):
        if before == number == place:
            continue  # a run of tokens of several images
        before = number
        if number == place:
            while len(labels) < len(ids) and ids[len(labels)] != image:
                labels.append(-100)  # what stands before an image
            while len(labels) < len(ids) and ids[len(labels)] == image:
                labels.append(-100)
            continue
        while len(labels) < len(ids) and ids[len(labels)] != number:
            labels.append(-100)  # what stands behind an image
        trained = any(first < stop and start < last for first, last in spans)
        labels.append(number if trained else -100)
    return labels


@pytest.fixture(scope="module")
def few(samples_of, shards):
    return samples_of(12), shards


def theirs(processor, sample):
    """The text of a sample as the template writes it, and what the processor makes of it."""
    messages = []
    for role, text in sample.turns:
        parts = [{"type": "image"}] * text.count("<image>")
        parts += [{"type": "text", "text": text.replace("<image>", "")}]
        messages.append({"role": role, "content": parts})
    text = processor.apply_chat_template(messages, tokenize=False)
    # As its apply_chat_template does when it encodes too.
    begun = text.startswith(processor.tokenizer.bos_token)
    images = [sample.images] if sample.images else None
    with with_pillow():
        given = processor(images=images, text=[text], add_special_tokens=not begun)
    return text, dict(given)


def check(case, model, samples, shards):
    processor = case.make()
    spec, _ = datapipe.specs_for(model)
    loader = loader_of(shards, model, batch_size=1)
    for batch, sample in zip(loader, samples, strict=True):
        text, expected = theirs(processor, sample)
        ids = expected["input_ids"][0]
        assert batch["input_ids"][0].tolist() == list(ids)
        assert batch["labels"][0].tolist() == learnt(case, processor, text, list(ids))
        if "token_type_ids" in expected and case.model_type != "gemma3n":  # it ignores them
            assert batch["token_type_ids"].tolist() == [list(expected["token_type_ids"][0])]
        if not sample.images:
            continue
        for name in FACTS:
            # Models of tiles of one size take the mask as all ones where there is none.
            if name in expected and not (spec.longest and name == "pixel_attention_mask"):
                assert batch[name].tolist() == np.asarray(expected[name]).tolist()
        pixels = expected["pixel_values"]
        if torch.is_tensor(pixels[0]) and pixels[0].ndim == 4:  # tiles of each image, not padded
            pixels = torch.cat(pixels)
        pixels = np.asarray(pixels, np.float32)
        ours = batch["pixel_values"]
        if spec.longest and pixels.ndim == 5:  # tiles of each sample
            pixels, ours = pixels[0], ours[0]
        if pixels.ndim == 5:  # images with as many tiles as the largest
            grids = [list(grid) for grid in spec.grids or ()]
            cut = len(sample.images) == 1 or spec.pad_several is None
            tiles = [
                image_size_to_num_patches([image.height, image.width], grids, spec.height)
                if cut
                else 1
                for image in sample.images
            ]
            pixels = np.concatenate([own[:count] for own, count in zip(pixels, tiles, strict=True)])
        off = levels_apart(ours, pixels, spec)
        thrice = spec.interpolation == "lanczos"  # resized one after the other
        assert off.max() < (3.01 if thrice else 2.01)
        # A few values of a small image are a larger share.
        assert (off > 1.01).sum() <= max(8, (2e-4 if thrice else 5e-5) * off.numel())


@pytest.mark.parametrize("source", mostly_quick(CASES))
def test_a_model_is_fed_as_by_its_processor(source, few, tmp_path):
    apart = [*CASES].index(source) % 2 == 0  # each family is saved in both ways
    check(CASES[source], CASES[source].save(tmp_path, apart=apart), *few)


@pytest.mark.parametrize("source", mostly_quick(CASES, every=6))
def test_a_processor_is_a_model_too(source, few):
    check(CASES[source], CASES[source].make(), *few)


def test_pixels_may_be_stretched_and_not_normalised(few):
    source = "llava-hf/llava-1.5-7b-hf"
    options = {"size": {"height": 336, "width": 336}, "do_normalize": False}
    case = replace(CASES[source], image_options=CASES[source].image_options | options)
    check(case, case.make(), *few)


# Canvases of up to 9 tiles and anyres_max_4; tiles with a thumbnail of another size.
@pytest.mark.parametrize("name", ["llava_onevision", "lfm2_vl"])
def test_images_much_larger_than_a_tile_are_as_by_the_processor(few, tmp_path, name):
    case = TINY[name].case
    check(case, case.save(tmp_path), *few)


@pytest.mark.campaign
@pytest.mark.parametrize("source", CASES)
def test_many_sizes_are_as_by_the_processor(source, tmp_path, samples_of, packed_samples):
    samples = samples_of(60)
    check(CASES[source], CASES[source].save(tmp_path), samples, packed_samples(samples))


@pytest.mark.parametrize(
    "source",
    mostly_quick(
        (
            source
            for source, case in CASES.items()
            if case.model_type not in ("gemma3", "gemma4_unified")
        ),
        every=3,
    ),
)
def test_packs_have_the_tokens_of_all_samples(source, few, tmp_path):
    samples, shards = few
    processor = CASES[source].make()
    model = CASES[source].save(tmp_path)
    expected = sorted(list(theirs(processor, sample)[1]["input_ids"][0]) for sample in samples)
    found = []
    pack = datapipe.specs_for(model)[1].attention_chunk or 30_000
    for batch in loader_of(shards, model, pack=pack, shuffle=True):
        ids, edges = batch["input_ids"][0].tolist(), batch["cu_seq_lens_q"].tolist()
        found += [ids[a:b] for a, b in pairwise(edges)]
    assert sorted(found) == expected


@pytest.mark.parametrize(
    "source",
    [
        source
        for source, case in CASES.items()
        if case.model_type.startswith(("qwen", "glm", "paddle"))
    ],
)
def test_positions_are_those_of_the_model(source, few, tmp_path):
    case = CASES[source]
    config = AutoConfig.for_model(case.model_type)
    image = case.make().image_token_id
    config.image_token_id, config.text_config.num_hidden_layers = image, 1
    if getattr(config.text_config, "layer_types", None):
        config.text_config.layer_types = config.text_config.layer_types[:1]
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    for batch in loader_of(few[1], case.save(tmp_path), batch_size=4):
        expected, _ = model.get_rope_index(
            batch["input_ids"],
            mm_token_type_ids=(batch["input_ids"] == image).int(),
            image_grid_thw=batch.get("image_grid_thw"),
            attention_mask=batch["attention_mask"],
        )
        learnt_from = batch["attention_mask"].bool()
        assert torch.equal(batch["position_ids"][:, learnt_from], expected[:, learnt_from])
