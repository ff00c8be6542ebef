"""Batches decoded by DALI are those of the CPU kernels, within what decoders differ."""

import logging
from functools import partial

import pytest
import torch

import datapipe
from datapipe import ImageSpec, PlanError
from datapipe.testing import assert_same_batches

from .conftest import DAMAGED

pytest.importorskip("nvidia.dali")


def both(make, **options):
    """Batches by DALI, each with that of the CPU kernels."""
    return zip(make(decoder="dali", **options), make(decoder="cpu", **options), strict=True)


@pytest.mark.parametrize(
    "spec",
    [ImageSpec(size=64), ImageSpec(size=(48, 80), resize="pad", normalize="clip")],
    ids=["stretch", "pad"],
)
@pytest.mark.parametrize(
    ("options", "num_workers"), [({"batch_size": 6}, 0), ({"pack": 200}, 2)], ids=str
)
def test_batches_are_those_of_the_cpu_kernels(make, text, spec, options, num_workers):
    options = options | {"image": spec, "text": text(), "num_workers": num_workers}
    scale = 1.0 if spec.normalize is None else 1 / 255 / 0.26
    for dali, kernels in both(make, **options):
        pixels, expected = dali.pop("pixel_values", None), kernels.pop("pixel_values", None)
        assert_same_batches([dali], [kernels])
        assert (pixels is None) == (expected is None)
        if pixels is not None:
            assert pixels.shape == expected.shape
            assert pixels.dtype == expected.dtype
            difference = (pixels.float() - expected.float()).abs()
            assert difference.mean() < 1.5 * scale


def test_a_damaged_image_is_isolated(damaged):
    make = partial(datapipe.make_loader, damaged, batch_size=5)
    for verify in (True, False):
        options = {"image": ImageSpec(size=32), "on_error": "skip", "verify": verify}
        for dali, kernels in both(make, **options):
            assert dali["valid"].tolist() == kernels["valid"].tolist()
            difference = dali["pixel_values"].float() - kernels["pixel_values"].float()
            assert difference.abs().mean() < 1.5
    with pytest.raises(datapipe.DecodeError) as caught:
        list(make(decoder="dali", verify=False))
    assert caught.value.key in DAMAGED


def test_excluded_samples_leave_zeros(make, text):
    options = {"text": text(), "pack": 200, "exclude": [3, 9, 17], "image": ImageSpec(size=16)}
    for dali, kernels in both(make, **options):
        assert ("pixel_values" in dali) == ("pixel_values" in kernels)
        if "pixel_values" in dali:
            blank = (kernels["pixel_values"] == 0).flatten(1).all(1)
            assert ((dali["pixel_values"] == 0).flatten(1).all(1) == blank).all()


def test_samples_are_left_out_of_batches_without_images(make):
    options = {"batch_size": 1, "shuffle": False, "exclude": [9, 19], "image": ImageSpec(size=16)}
    batches = list(make(decoder="dali", **options))
    assert_same_batches(batches[9:10], list(make(decoder="cpu", **options))[9:10])
    options |= {"batch_size": 2, "where": "images == 0", "exclude": [19]}
    for dali, kernels in both(make, **options):
        assert_same_batches([dali], [kernels])
        assert len(dali["pixel_values"]) == 0


@pytest.mark.parametrize(
    "spec",
    [
        ImageSpec(size=(24, 40)),
        ImageSpec(size=(24, 40), resize="pad"),
        ImageSpec(size=(40, 24), resize="pad"),
        ImageSpec(size=24, resize="crop", crop_from=30),
        ImageSpec(size=24, resize="crop", random_crop=(0.3, 0.8), flip=0.5),
        ImageSpec(size=24, flip=1.0),
    ],
    ids=lambda spec: f"{spec.resize}-{spec.size}-{spec.flip}",
)
def test_dali_says_where_pixels_went_as_the_kernels_do(make, spec):
    rows = 0
    for dali, kernels in both(make, image=spec, meta="image_geometry"):
        expected = kernels["image_geometry"]
        rows += len(expected)
        torch.testing.assert_close(dali["image_geometry"], expected, rtol=1e-9, atol=1e-9)
    assert rows > 0


def test_the_options_of_dali_are_its_name(make):
    options = datapipe.DaliOptions(hw_decoder_load=0.9, preallocate_width=4000)
    assert_same_batches(make(decoder=options), make(decoder="dali"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("options", "cause"),
    [({}, "torch sees none"), ({"workers": "processes"}, "does not work in processes")],
)
def test_kernels_decode_where_dali_was_not_asked_for_and_cannot_start(
    make, pretend_gpu, caplog, options, cause
):
    pretend_gpu()
    options = {"image": ImageSpec(size=64, normalize="clip"), "num_workers": 2, **options}
    with caplog.at_level(logging.INFO, "datapipe"):
        loader = make(device="cuda", **options)
    assert "images are decoded by the CPU kernels" in caplog.text
    assert "decoded by DALI" not in caplog.text
    assert cause in caplog.text
    assert_same_batches(loader, make(decoder="cpu", **options))
    with pytest.raises(PlanError, match=cause):
        make(device="cuda", decoder="dali", **options)
