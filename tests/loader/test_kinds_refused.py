"""Images of different kinds are refused where a batch must have one, and normalised on a device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from datapipe import CacheSpec, ImageSpec, PlanError
from datapipe.cache.factory import kept_transform
from datapipe.decode.forms.together import check_together
from datapipe.decode.transform import make_transform
from datapipe.loader.batch.image_batch import ImageSlots
from datapipe.loader.image_path import choose_path
from datapipe.loader.specs import BatchSpec, DeviceSpec
from datapipe.loader.work import SampleWork

from .kinds import NATIVE, PAIRS, SAMPLES, Make, build, job, together


def test_caches_refuse_decoded_images_of_two_forms() -> None:
    specs = {"one": ImageSpec(size=24), "other": ImageSpec(size=24, resize="crop")}
    cache = CacheSpec(memory=1 << 30, keep="auto")
    assert kept_transform(cache, specs, decoder=False, transform=False) is None
    cache = CacheSpec(memory=1 << 30, keep="decoded")
    with pytest.raises(PlanError, match="one and other differ"):
        kept_transform(cache, specs, decoder=False, transform=False)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (ImageSpec(size=448), r"\[3, 336, 336\] of one, \[3, 448, 448\] of other"),
        (ImageSpec(size=336, normalize="clip"), "torch.uint8 of one, torch.float32 of other"),
        (NATIVE, "'image_grid_thw'"),
        (ImageSpec(resize="tiles", size=336, grids=((336, 672),)), "'image_sizes'"),
        (ImageSpec(resize="shortest", size=336), "of the largest image of other"),
    ],
    ids=str,
)
def test_images_that_make_no_batch_are_refused(other: ImageSpec, told: str) -> None:
    first = make_transform(ImageSpec(size=336))
    alike = make_transform(ImageSpec(size=336, flip=0.5, resize="crop"))
    check_together([first, alike], ["one", "alike"])
    with pytest.raises(PlanError, match=told):
        check_together([first, alike, make_transform(other)], ["one", "alike", "other"])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"merge": 1}, "merge: 2 of one, 1 of other"),
        ({"patch": 4, "temporal": 8}, "patch: 8 of one, 4 of other"),
    ],
)
def test_patches_of_equal_length_are_no_equal_patches(changes: dict[str, Any], told: str) -> None:
    specs = NATIVE, replace(NATIVE, **changes)
    with pytest.raises(PlanError, match=told):
        check_together([make_transform(spec) for spec in specs], ["one", "other"])


def work_on(**options: Any) -> SampleWork:
    options = {"device": DeviceSpec("cpu"), "decoder": "auto", "cache": None} | options
    nothing: dict[str, Any] = {"image": None, "text": None, "transform": None, "where": None}
    return SampleWork(static_shapes=False, **{"batch": BatchSpec(4)} | nothing | options)


@pytest.mark.parametrize("pair", ["fixed and tiles", "shortest and dynamic"])
def test_a_device_normalises_images_of_two_specs(make: Make, pair: str) -> None:
    first, other = PAIRS[pair]
    loaders = [make(image=spec) for spec in (first, other)]
    context, work = together(loaders), work_on(image=first)
    expected = build(context, job(loaders, SAMPLES))["pixel_values"]
    path = choose_path(work, loaders[0].options)
    transforms = [path.transform(spec) for spec in (None, other)]
    assert context.images is not None
    images = replace(context.images, transforms=tuple(transforms))  # type: ignore[arg-type]
    batch = build(replace(context, images=images), job(loaders, SAMPLES))
    assert batch["pixel_values"].dtype == torch.uint8
    assert path.prefetcher is not None
    there = path.prefetcher.receive(path.prefetcher.send(batch))
    assert torch.equal(there["pixel_values"], expected)


@pytest.mark.parametrize(
    ("options", "changes", "told"),
    [
        ({}, {"normalize": "siglip"}, "normalised on the device"),
        ({}, {"resize": "shortest"}, "pads images of resize='stretch'"),
        ({"cache": CacheSpec(device=1 << 20)}, {"flip": 0.5}, "keeps images of one ImageSpec"),
        ({"batch": BatchSpec(4, sample_images=2)}, {"resize": "tiles"}, "sample_images=2"),
    ],
    ids=["normalised", "padded", "device cache", "shapes"],
)
def test_images_of_a_dataset_that_the_rest_of_the_loader_cannot_take_are_refused(
    make: Make, options: dict[str, Any], changes: dict[str, Any], told: str
) -> None:
    image = ImageSpec(size=24, normalize="clip")
    path = choose_path(work_on(image=image, **options), make().options)
    same = path.transform(replace(image)), path.transform()
    assert len({repr(transform.spec) for transform in same if transform}) == 1
    with pytest.raises(PlanError, match=told):
        path.transform(replace(image, **changes))
    if not options:
        return
    dali = replace(path, decoder=object())  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="DALI makes all images of a batch alike"):
        dali.transform(replace(image, flip=0.5))


def test_one_kind_takes_no_kinds_into_account(make: Make) -> None:
    images = make(image=PAIRS["fixed"][0]).components().context.images
    assert images is not None
    counted = replace(images, kinds=lambda samples: pytest.fail("asked for kinds"))
    samples = np.arange(3)
    ImageSlots(counted, samples, np.ones_like(samples), lambda slot: (0, slot))
