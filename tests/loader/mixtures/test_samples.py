"""Samples of a mixture are those of each dataset alone."""

import pytest
from tokenizers import Tokenizer

import datapipe
from datapipe import CacheSpec, ImageSpec, PackSpec, PlanError, RunSpec
from datapipe.testing import assert_same_batches

from .datasets import META, SIZES, SMALL, draws, pixels_of, plain


def test_random_numbers_differ_between_passes_and_samples(make, mixture):
    """A dataset that is passed several times in an epoch is cropped anew each time."""
    loader = make(mixture(parts=("chats", "drawings", "captions")), batch_size=1, epochs=3)
    seen = {}
    for batch in loader:
        (draw,) = draws([batch])
        seen.setdefault(draw, []).append(pixels_of(batch))
    crops = [images for (name, _), images in seen.items() if name == "captions"]
    assert min(map(len, crops)) >= 3
    assert all(len(set(images)) == len(images) for images in crops)
    assert all(len(set(images)) == 1 for (name, _), images in seen.items() if name == "chats")


def test_dali_makes_the_images_of_a_mixture(make, mixture):
    pytest.importorskip("nvidia.dali")
    parts = ("captions", "drawings")
    same = {name: {"image": SMALL} for name in parts}
    given = mixture(parts=parts, **same)
    expected = list(make(given, decoder="dali"))
    assert_same_batches(make(given, decoder="dali", num_workers=2), expected)
    for batch, other in zip(expected, make(given, decoder="cpu"), strict=True):
        assert draws([batch]) == draws([other])
        difference = (batch["pixel_values"].float() - other["pixel_values"].float()).abs()
        assert difference.mean() < 3
    with pytest.raises(PlanError, match="DALI"):
        make(mixture(parts=parts), decoder="dali")


@pytest.mark.parametrize(
    "options",
    [
        {"pack": 128},
        {"pack": PackSpec(128, static_shapes=True)},
        {"max_tokens": 200},
        {"batch_size": 3, "buckets": 2, "meta": META},
        {"batch_size": 3, "run": RunSpec(train_tokens=200)},
    ],
    ids=str,
)
def test_texts_of_the_datasets_are_enough(make, mixture, caption, options):
    expected = list(make(**options))
    given = mixture(**{name: {"text": caption} for name in SIZES if name != "chats"})
    assert_same_batches(make(given, **{"meta": META, **options, "text": None}), expected)
    whole = {"datasets": mixture(), "text": caption}
    assert_same_batches(make(whole, **{"meta": META, **options, "text": None}), expected)


def test_tokens_of_an_image_follow_from_the_images_of_its_dataset(make, folders, tokenizer):
    text = datapipe.TextSpec(tokenizer=tokenizer, template="caption")
    large, small = ImageSpec(size=56, patch=14), ImageSpec(size=56, patch=28)
    parts = {
        "captions": {"path": folders["captions"], "image": large},
        "one": {"path": folders["one"], "image": small},
    }
    placeholder = Tokenizer.from_file(str(tokenizer)).token_to_id("<image>")
    found = {
        origin: int((ids == placeholder).sum())
        for batch in make(parts, text=text, image=large, batch_size=1, meta="dataset")
        for origin, ids in zip(batch["dataset"], batch["input_ids"], strict=True)
    }
    assert found == {"captions": 16, "one": 4}
    unknown = parts | {"one": {"path": folders["one"], "image": ImageSpec(size=56)}}
    with pytest.raises(PlanError, match=r"dataset 'one' of the mixture: how many tokens an image"):
        make(unknown, text=text, image=large)


def test_images_of_one_kind_are_kept_on_the_device(make, folders):
    given = plain("chats", "drawings", folders=folders)
    image = ImageSpec(size=16, flip=0.5)
    expected = list(make(given, image=image, device="cpu", epochs=2))
    loader = make(given, image=image, device="cpu", epochs=2, cache=CacheSpec(device="20MB"))
    assert_same_batches(loader, expected)
    loader.close()
    with pytest.raises(PlanError, match="of one ImageSpec"):
        make(device="cpu", cache=CacheSpec(device="20MB"))
