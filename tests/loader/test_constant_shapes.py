"""Padded batches of constant shapes."""

import pytest
import torch

from datapipe import BatchSpec, ImageSpec, PlanError
from datapipe.loader.plan_report import report_plan


def shapes(loader):
    return {
        (tuple(batch["input_ids"].shape), tuple(batch["pixel_values"].shape)) for batch in loader
    }


def test_all_batches_have_one_shape_the_last_one_too(make, text):
    batch = BatchSpec(4, pad_to=64, sample_images=2)
    loader = make(text=text(), batch_size=batch, epochs=2, meta=("valid", "images_per_sample"))
    assert shapes(loader) == {((4, 64), (8, 3, 32, 32))}
    *_, last = loader
    # 37 samples: the last batch has one, and repeats of others without labels.
    assert last["valid"].tolist() == [True, False, False, False]
    assert (last["labels"][1:] == -100).all()
    images = int(last["images_per_sample"].sum())
    assert (last["pixel_values"][images:] == 0).all()
    assert images < 8


def test_padding_alone_differs_from_batches_of_their_own_length(make, text):
    padded = list(make(text=text(), batch_size=BatchSpec(4, pad_to=64, sample_images=2)))
    for constant, own in zip(padded, make(text=text(), batch_size=4), strict=True):
        length, images = own["input_ids"].shape[1], len(own["pixel_values"])
        for name in ("input_ids", "labels", "attention_mask"):
            assert torch.equal(constant[name][:, :length], own[name])
        assert torch.equal(constant["pixel_values"][:images], own["pixel_values"])
        assert not constant["attention_mask"][:, length:].any()
        assert (constant["labels"][:, length:] == -100).all()
        assert not constant["pixel_values"][images:].any()


@pytest.mark.parametrize("buckets", [None, 3])
def test_lengths_are_rounded_up_to_a_multiple(make, text, buckets):
    options = {"text": text(), "buckets": buckets}
    rounded = make(batch_size=BatchSpec(4, multiple_of=16), **options)
    for batch, own in zip(rounded, make(batch_size=4, **options), strict=True):
        length = own["input_ids"].shape[1]
        assert batch["input_ids"].shape[1] == -(-length // 16) * 16
        assert torch.equal(batch["input_ids"][:, :length], own["input_ids"])


def test_patches_are_filled_up_to_those_of_every_sample(make, text):
    image = ImageSpec(resize="native", patch=8, merge=2, min_pixels=256, max_pixels=1024)
    options = {"text": text(image_tokens="native"), "image": image}
    loader = make(batch_size=BatchSpec(3, pad_to=64, sample_patches=40), **options)
    assert {len(batch["pixel_values"]) for batch in loader} == {3 * 40}
    with pytest.raises(PlanError, match=r"more than .* 4 patches"):
        make(batch_size=BatchSpec(3, pad_to=64, sample_patches=4), **options)


def test_samples_that_are_too_large_are_treated_as_asked(make, text):
    with pytest.raises(PlanError, match=r"do not fit.*more than 28 tokens.*'truncate'"):
        make(text=text(), batch_size=BatchSpec(4, pad_to=28))
    with pytest.raises(PlanError, match=r"do not fit.*more than 64 tokens or 1 images.*out, or a"):
        make(text=text(), batch_size=BatchSpec(4, pad_to=64, sample_images=1))
    one = BatchSpec(4, pad_to=64, sample_images=1)
    dropped = make(text=text(overlong="drop"), batch_size=one)
    assert shapes(dropped) == {((4, 64), (4, 3, 32, 32))}
    two_images = sum(number % 7 == 3 and number % 10 != 9 for number in range(37))
    assert report_plan(dropped, epoch=0).summary.samples == 37 - two_images
    cut = make(text=text(overlong="truncate"), batch_size=BatchSpec(4, pad_to=28))
    assert {batch["input_ids"].shape for batch in cut} == {(4, 28)}


def test_the_plan_counts_the_padding(make, text):
    def fill(**options):
        loader = make(text=text(), batch_size=BatchSpec(4, **options), meta="valid")
        tokens = slots = 0
        for batch in loader:
            # Repeats at the end of the epoch are work, and no samples.
            mask = batch["attention_mask"][batch["valid"]]
            tokens, slots = tokens + int(mask.sum()), slots + mask.numel()
        found = report_plan(loader, epoch=0).summary
        assert found.tokens == tokens
        assert found.fill == pytest.approx(tokens / slots)
        return tokens / slots

    assert fill(pad_to=64) < fill(multiple_of=16) < fill()
