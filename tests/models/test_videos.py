"""Batches with videos are what the processors of the Qwen families make of the same frames."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import datapipe

from ..decode.fitted import levels_apart
from .conftest import loader_of
from .tiny import TINY
from .video_processors import with_pillow
from .videos import VIDEO_CASES, samples, theirs

PACKING = [name for name in VIDEO_CASES if name != "qwen3_5"]  # needs flash-linear-attention


pytestmark = pytest.mark.usefixtures("rows_first")


@pytest.mark.parametrize("name", VIDEO_CASES)
def test_a_model_is_fed_as_by_its_processor(name, films, tmp_path):
    case = VIDEO_CASES[name]
    model = case.save(tmp_path)
    processor = case.make()
    image, _ = datapipe.specs_for(model)
    loader = loader_of(films, model, batch_size=1)
    for batch, sample in zip(loader, samples(), strict=True):
        expected = theirs(processor, sample)
        assert batch["input_ids"].tolist() == expected["input_ids"].tolist()
        for key in ("image_grid_thw", "video_grid_thw", "second_per_grid_ts"):
            assert (key in batch) == (key in expected)
            if key in expected:
                assert torch.equal(batch[key], expected[key])
        for key in ("pixel_values", "pixel_values_videos"):
            assert (key in batch) == (key in expected)
            if key in expected:
                off = levels_apart(batch[key], expected[key], image)
                assert off.max() < 2.01
                assert (off > 1.01).sum() <= max(8, 5e-5 * off.numel())


def tiny(name):
    """A tiny model of the family, in float64."""
    return replace(TINY[name], case=VIDEO_CASES[name]).build("sdpa")


def types_of(model, batch):
    """1 for tokens of images, 2 for those of videos, as processors return them."""
    image = batch["input_ids"] == model.config.image_token_id
    return image.int() + 2 * (batch["input_ids"] == model.config.video_token_id).int()


def in_double(batch):
    pixels = ("pixel_values", "pixel_values_videos")
    return {k: v.double() if k in pixels else v for k, v in batch.items()}


@pytest.mark.parametrize("name", VIDEO_CASES)
def test_positions_are_those_of_the_model(name, folders, films):
    model = tiny(name)
    loader = loader_of(films, folders[name], batch_size=5)
    (batch,) = loader
    expected, _ = model.model.get_rope_index(
        batch["input_ids"],
        mm_token_type_ids=types_of(model, batch),
        image_grid_thw=batch["image_grid_thw"],
        video_grid_thw=batch["video_grid_thw"],
        attention_mask=batch["attention_mask"],
        second_per_grid_ts=batch.get("second_per_grid_ts"),
    )
    mask = batch["attention_mask"].bool()
    assert torch.equal(batch["position_ids"][:, mask], expected[:, mask])


@pytest.mark.parametrize("name", PACKING)
def test_packs_compute_what_padded_batches_do(name, folders, films):
    model = tiny(name)
    one_each = loader_of(films, folders[name], batch_size=1)
    expected, lengths = [], []
    with torch.no_grad():
        for batch in one_each:
            expected.append(model(**in_double(batch)).logits[0])
            lengths.append(batch["input_ids"][0].tolist())
        seen = 0
        for batch in loader_of(films, folders[name], pack=4000):
            logits = model(**in_double(batch)).logits[0]
            for start, stop in pairwise(batch["cu_seq_lens_q"].tolist()):
                number = lengths.index(batch["input_ids"][0, start:stop].tolist())
                assert torch.allclose(logits[start:stop], expected[number], atol=1e-9)
                seen += 1
    assert seen == len(expected)


@pytest.mark.parametrize("name", VIDEO_CASES)
def test_a_check_of_a_model_compares_videos(name, films):
    with with_pillow():
        check = datapipe.check_model(VIDEO_CASES[name].make(), films)
    assert check.is_equal, check.differences
    assert (check.samples, check.labels) == (5, 5)
