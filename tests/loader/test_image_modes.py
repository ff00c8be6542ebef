"""Images of every form in batches and packs: their rows, tokens, facts and geometry."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from datapipe import ImageSpec, PackSpec
from datapipe.decode.transform import make_transform
from datapipe.index.dataset import open_dataset
from datapipe.testing import assert_resumes_exactly

from ..campaigns import rare
from .conftest import IMAGE_ID
from .stated import IMAGES

MODES = {
    "native": ("native", {"image_grid_thw"}),
    "mrope": ("native", {"image_grid_thw"}),
    "tiles": ("per-tile", set()),
    "anyres": ("per-tile", {"image_sizes"}),
    "dynamic": ("native", {"image_sizes"}),
    "shortest": ("native", {"image_sizes"}),
}
"""Rule of the tokens of an image, and what batches say of each image."""
META = ("key", "valid", "images_per_sample", "num_items_in_batch")

modes = pytest.mark.parametrize("mode", MODES)


def images_of(batch, columns):
    return [
        image
        for sample in batch["sample"].tolist()
        for image in range(columns.sample_image[sample], columns.sample_image[sample + 1])
    ]


@modes
@pytest.mark.parametrize("options", [{"batch_size": 5}, {"pack": 300}], ids=str)
def test_texts_have_as_many_image_tokens_as_the_images_need(make, text, packed, mode, options):
    spec, (_, facts) = IMAGES[mode], MODES[mode]
    transform, columns = make_transform(spec), open_dataset(packed).columns
    for batch in make(image=spec, text=text(image_tokens=None), meta="sample", **options):
        images = images_of(batch, columns)
        sides = columns.image_width, columns.image_height
        sizes = [side[images].astype(np.int64) for side in sides]
        assert (batch["input_ids"] == IMAGE_ID).sum() == transform.tokens(*sizes).sum()
        if images:
            rows = int(transform.rows(*sizes).sum())
            assert batch["pixel_values"].shape == (rows, *transform.row_shape(*sizes))
            assert facts == {"image_grid_thw", "image_sizes"} & batch.keys()
            for name in facts:
                assert torch.equal(batch[name], transform.facts(*sizes)[name])
                assert len(batch[name]) == len(images)


@pytest.mark.parametrize("mode", ["native", "tiles", "anyres"])
def test_packs_keep_to_a_capacity_of_patches(make, text, mode):
    spec, (rule, _) = IMAGES[mode], MODES[mode]
    options = {"image": spec, "text": text(image_tokens=rule), "meta": META}
    most = max(len(batch["pixel_values"]) for batch in make(pack=2000, **options))
    bound = 300 if mode == "native" else 25
    assert most > bound
    pack = PackSpec(2000, max_patches=bound)
    batches = list(make(pack=pack, **options))
    assert max(len(batch["pixel_values"]) for batch in batches) <= bound
    assert sum(int(batch["valid"].sum()) for batch in batches) == 37
    static = list(make(pack=replace(pack, static_shapes=True), **options))
    assert {len(batch["pixel_values"]) for batch in static} == {bound}


@pytest.mark.parametrize(
    "mode", ["tiles", "mrope", *map(rare, ("native", "anyres", "dynamic", "shortest"))]
)
def test_every_form_resumes_exactly(make, text, mode):
    spec, (rule, _) = IMAGES[mode], MODES[mode]
    pack = PackSpec(400, max_patches=None if mode == "dynamic" else 200)
    cut = text(image_tokens=rule, max_length=200, overlong="truncate")
    assert_resumes_exactly(
        lambda **more: make(image=spec, text=cut, pack=pack, meta=META, **more),
        stops=(0.6,),
        world_sizes=(1, 2),
    )


@modes
def test_a_truncated_sample_keeps_the_rows_of_its_images(make, text, mode):
    spec, (rule, _) = IMAGES[mode], MODES[mode]
    options = {"image": spec, "batch_size": 1, "meta": META}
    whole = {b["key"][0]: b for b in make(text=text(image_tokens=rule), **options)}
    least = min(b["input_ids"].shape[1] for b in whole.values() if b["images_per_sample"][0] == 2)
    lost = kept = 0
    for limit in (least // 4, least // 3, least // 2):
        cut = text(image_tokens=rule, max_length=limit, overlong="truncate")
        for batch in make(text=cut, **options):
            one = whole[batch["key"][0]]
            images = int(batch["images_per_sample"][0])
            kept += images
            lost += int(one["images_per_sample"][0]) - images
            assert ("pixel_values" in batch) == (images > 0)
            if images and mode == "native":
                rows = int(batch["image_grid_thw"].prod(1).sum())
                assert torch.equal(batch["pixel_values"], one["pixel_values"][:rows])
    assert kept > 0 < lost


def test_models_may_make_one_number_of_tokens_of_images_that_are_padded(make, text):
    image = replace(IMAGES["shortest"], patch=None)
    for batch in make(image=image, text=text(image_tokens=5), meta="images_per_sample"):
        images = int(batch["images_per_sample"].sum())
        assert int((batch["input_ids"] == IMAGE_ID).sum()) == 5 * images


def test_geometry_says_where_the_pixels_of_an_image_went(make, packed):
    columns = open_dataset(packed).columns
    spec = ImageSpec(size=40, resize="pad")
    for batch in make(image=spec, meta=("image_geometry", "sample")):
        images = images_of(batch, columns)
        geometry = batch["image_geometry"]
        assert geometry.shape == (len(images), 6)
        assert geometry.dtype == torch.float64
        for (scale_x, scale_y, left, top, width, height), image in zip(
            geometry.tolist(), images, strict=True
        ):
            assert (width, height) == (columns.image_width[image], columns.image_height[image])
            assert scale_x == pytest.approx(40 / width)  # wider than high
            assert scale_y == pytest.approx(scale_x, rel=0.05)
            assert (left, top) == (0, pytest.approx((40 - height * scale_y) / 2, abs=0.6))
