"""A user's own transform, and what is random: the same whoever runs it."""

import numpy as np
import pytest
import torch

from datapipe import ImageSpec, TransformError
from datapipe.testing import assert_same_batches

from .stated import darken

CROPS = ImageSpec(size=24, resize="crop", random_crop=(0.2, 1.0), flip=0.5)


def by_key(loader):
    """Images of every sample."""
    found = {}
    for batch in loader:
        images = batch["pixel_values"].split(batch["images_per_sample"].tolist())
        found |= dict(zip(batch["key"], images, strict=True))
    return found


@pytest.mark.parametrize("options", [{"transform": darken}, {"image": CROPS}], ids=["own", "crop"])
def test_what_is_random_is_the_same_whoever_runs_it_and_changes_with_epoch_and_seed(make, options):
    options = options | {"where": "images > 0"}
    loader = make(**options)
    first, second = by_key(loader), by_key(loader)
    for other in ({"num_workers": 0}, {"num_workers": 5}, {"batch_size": 7}):
        same = by_key(make(**options | other))
        assert first.keys() == same.keys()
        assert all(torch.equal(first[key], same[key]) for key in first), other
    for changed in (second, by_key(make(seed=1, **options))):
        differ = [key for key in first if not torch.equal(first[key], changed[key])]
        assert len(differ) > 0.9 * len(first)


def test_a_transform_may_change_size_and_text(make):
    def change(sample, _):
        images = [np.full((5, 9, 3), 7, np.uint8) for _ in sample["images"]]
        return {"images": images, "text": f"{sample['key']}: {sample['record']['id']}"}

    for batch in make(transform=change):
        assert (batch["pixel_values"] == 7).all()
        assert batch["text"][0] == f"{batch['key'][0]}: id-{int(batch['key'][0])}"


@pytest.mark.parametrize(
    "image",
    [
        {"resize": "native", "patch": 4},
        {"resize": "dynamic", "patch": 4},
        {"resize": "budget", "patch": 4, "tokens": 16},
        {"resize": "naflex", "patch": 4, "size": 8},
        {"resize": "tiles", "size": 8, "longest": 32},
        {"resize": "tiles", "size": 8, "grids": ((8, 16), (16, 8))},
    ],
    ids=lambda image: "-".join(map(str, image)),
)
def test_a_transform_that_turns_an_image_on_its_side_is_refused_where_models_see_its_size(
    make, image
):
    def turn(sample, _):
        return sample | {"images": [np.rot90(image) for image in sample["images"]]}

    options = {"image": ImageSpec(**image), "where": "aspect > 1.5"}
    with pytest.raises(TransformError, match=r"made an image of (\d+)x(\d+) .* of one of \2x\1,"):
        list(make(transform=turn, **options))
    turned_back = lambda sample, _: turn(turn(sample, _), _)  # noqa: E731
    assert len(list(make(transform=turned_back, **options)))


def test_a_transform_that_changes_planned_text_is_refused(make, text):
    def change(sample, _):
        return sample | {"text": "other"}

    with pytest.raises(TransformError, match="tokens were counted for the plan"):
        list(make(text=text(), transform=change))
    assert_same_batches(
        list(make(text=text(), pack=200)),
        list(make(text=text(), pack=200, transform=lambda sample, _: sample)),
    )


@pytest.mark.parametrize(
    ("made", "cause"),
    [
        (lambda sample: 1 / 0, "raised ZeroDivisionError: division by zero"),
        (lambda sample: None, "returned NoneType, not the sample"),
        (lambda sample: sample | {"images": []}, "returned 0 images of"),
        (lambda sample: sample | {"images": [np.zeros((2, 2))] * 9}, "returned 9 images"),
        (
            lambda sample: sample | {"images": [np.zeros((2, 2)) for _ in sample["images"]]},
            r"float64 \[2, 2\] as an image, not uint8 \[h, w, 3\]",
        ),
        (lambda sample: sample | {"text": None}, "NoneType as text"),
    ],
)
def test_a_transform_that_fails_names_its_sample(make, made, cause):
    def fail(sample, _):
        return made(sample) if sample["key"] == "000000005" else sample

    with pytest.raises(TransformError, match=f"{cause}.*") as caught:
        list(make(transform=fail))
    assert caught.value.key == "000000005"
    loader = make(transform=fail, on_error="skip")
    batches = list(loader)
    assert loader.skipped == 1
    (batch,) = (batch for batch in batches if "000000005" in batch["key"])
    slot = batch["key"].index("000000005")
    assert not batch["valid"][slot]
    start = int(batch["images_per_sample"][:slot].sum())
    assert (batch["pixel_values"][start : start + int(batch["images_per_sample"][slot])] == 0).all()
