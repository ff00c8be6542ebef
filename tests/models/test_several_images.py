"""LLaVA-OneVision: an image that is alone in its sample is cut into tiles, others are not."""

import json
from dataclasses import replace

import pytest

import datapipe

from .conftest import loader_of
from .tiny import TINY

CASE = TINY["llava_onevision"].case


@pytest.fixture
def folder(folders):
    return folders["llava_onevision"]


def test_a_batch_says_how_many_images_each_sample_with_images_has(shards, folder):
    meta = ("images_per_sample",)
    alone = several = 0
    for batch in loader_of(shards, folder, pack=600, meta=meta):
        counts = batch["images_per_sample"].tolist()
        assert batch["batch_num_images"].tolist() == [count for count in counts if count]
        assert len(batch["image_sizes"]) == sum(counts)
        alone, several = alone + counts.count(1), several + sum(count > 1 for count in counts)
    assert alone
    assert several


def test_all_images_are_cut_if_the_colour_is_taken_away(shards, folder):
    image, _ = datapipe.specs_for(folder)
    image = replace(image, pad_several=None)
    (batch,) = loader_of(shards, folder, image=image, batch_size=12)
    assert "batch_num_images" not in batch
    assert len(batch["pixel_values"]) >= 2 * len(batch["image_sizes"])


def test_options_that_are_not_written_down_are_those_of_the_class(tmp_path):
    CASE.save(tmp_path, apart=True)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    written = {"num_image_tokens": 729, "processor_class": "LlavaOnevisionProcessor"}
    (tmp_path / "processor_config.json").write_text(json.dumps(written))
    image, _ = datapipe.specs_for(tmp_path)
    assert (image.size, image.patch, image.anyres_max) == (384, 14, 9)
    assert (len(image.grids), image.grids[0], image.grids[-1]) == (36, (384, 384), (2304, 2304))
    assert (image.normalize, image.pad_several) == ("clip", (122, 116, 104))
