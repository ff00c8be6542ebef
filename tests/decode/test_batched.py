"""Images resized one by one, as by Pillow, and batches resized and normalised as images are."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from datapipe.decode.batched import normalize_batch, resize_batch, zero_outside
from datapipe.decode.normalize import Normalizer, array_of
from datapipe.decode.resize import resize, resize_by_products
from datapipe.errors import PlanError

from .fitted import photo

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))

on_each_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)


def chelsea():
    """A photograph: uint8 [3, 300, 451]."""
    return torch.from_numpy(np.array(photo("chelsea.png"))).permute(2, 0, 1).contiguous()


def every_value():
    """All grey levels in all channels: uint8 [4, 3, 16, 16]."""
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(4, 3, 16, 16)
    return torch.stack([level.roll(number, dims=-1) for number, level in enumerate(levels)])


def by_the_loader(images, mean_std, dtype):
    out = torch.empty(images.shape, dtype=dtype)
    normalizer = Normalizer(mean_std, dtype)
    for image, place in zip(images, out, strict=True):
        normalizer.write(np.ascontiguousarray(image.permute(1, 2, 0)), array_of(place))
    return out


@on_each_device
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mean_std", [None, IMAGENET, CLIP, HALF])
def test_batches_and_images_of_the_loader_are_normalised_by_the_formula_to_the_same_bits(
    kernel, mean_std, dtype, channels_last, device
):
    images = every_value()
    expected = by_the_loader(images, mean_std, dtype)
    mean, std = (torch.tensor(v).double().view(3, 1, 1) for v in mean_std or ([0.0] * 3, [1.0] * 3))
    exact = (images.double() / 255 - mean) / std
    most = 1e-6 if dtype == torch.float32 else 2**-7
    assert (expected.double() - exact).abs().max() <= most
    got = normalize_batch(images.to(device), mean_std, dtype, channels_last=channels_last)
    assert got.dtype == dtype
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert got.is_contiguous(memory_format=layout)
    assert torch.equal(got.cpu(), expected)
    patches = images.reshape(4, 3, 256)  # by channel, whatever their shape
    got = normalize_batch(patches.to(device), mean_std, dtype)
    assert torch.equal(got.cpu(), expected.view(4, 3, 256))


def test_pixels_that_stay_as_they_are_are_not_copied():
    images = every_value()
    assert normalize_batch(images, None, torch.uint8) is images
    assert resize_batch(images, 16, 16) is images
    turned = normalize_batch(images, None, torch.uint8, channels_last=True)
    assert turned.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(turned, images)


def test_lists_and_numpy_values_do_for_mean_and_std():
    given = ([np.float32(0.5)] * 3, [0.5, 0.5, 0.5])
    got = normalize_batch(every_value(), given, torch.float32)
    assert torch.equal(got, normalize_batch(every_value(), HALF, torch.float32))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: normalize_batch(x.float(), None, torch.float32), "float32 values"),
        (lambda x: normalize_batch(x, HALF, torch.uint8), "do not fit"),
        (lambda x: normalize_batch(x, HALF, torch.float64), "float64 is not one of"),
        (lambda x: normalize_batch(x.permute(0, 2, 3, 1), HALF, torch.float32), "give .N, 3"),
        (lambda x: normalize_batch(x, ((1, 2), (3, 4)), torch.float32), "three values each"),
        (lambda x: normalize_batch(x[0], None, torch.float32, channels_last=True), "channels_last"),
        (lambda x: resize_batch(x[0], 8, 8), "give .N, 3, H, W"),
        (lambda x: resize_batch(x[..., :0], 8, 8), "with pixels"),
        (lambda x: resize_batch(x, 0, 8), "height 0: give an integer from 1"),
        (lambda x: resize_batch(x, 8, 8, "lanczos"), "filter 'lanczos': give 'bilinear' or"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(call, message):
    with pytest.raises(PlanError, match=message):
        call(every_value())


@settings(max_examples=40)
@given(
    old=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    new=st.tuples(st.integers(2, 400), st.integers(2, 400)),
    filter=st.sampled_from(["bilinear", "bicubic"]),
)
def test_batches_are_resized_by_the_loaders_kernel_and_by_matrix_products_as_it_does(
    old, new, filter
):
    photo = chelsea()[:, : old[0], : old[1]]
    batch = torch.stack([photo, photo.flip(-1)])
    pixels = [resize(image.permute(1, 2, 0).numpy(), *new, filter) for image in batch]
    expected = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
    assert torch.equal(resize_batch(batch, *new, filter), expected)
    got = resize_by_products(batch, *new, filter)
    off = (got.int() - expected.int()).abs().float()
    assert off.max() <= 2  # one for each pass
    # What comes close to the middle between two grey levels may be rounded either way.
    assert off.sum() <= 0.05 * off.numel() + 12


def test_batches_too_large_for_memory_are_resized_in_parts():
    # 194 images of 300 x 451 pixels are 300 MB as float32; 164 are resized at once.
    batch = chelsea().expand(194, -1, -1, -1)
    expected = resize_by_products(chelsea()[None], 16, 16, "bilinear")[0]
    for parts in resize_by_products(batch, 16, 16, "bilinear"):
        assert (parts.int() - expected.int()).abs().max() <= 1


def test_autocast_does_not_reach_the_pixels():
    batch = chelsea()[None]
    expected = resize_by_products(batch, 64, 64, "bilinear")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(resize_by_products(batch, 64, 64, "bilinear"), expected)


@on_each_device
def test_what_lies_outside_of_an_image_becomes_zero(device):
    pixels = torch.ones(3, 3, 4, 5, device=device)
    sizes = torch.tensor([[4, 5], [2, 3], [0, 0]], device=device)
    assert zero_outside(pixels, sizes) is pixels
    assert pixels.sum(dim=(1, 2, 3)).tolist() == [60, 18, 0]
    assert pixels[1, :, :2, :3].sum() == 18


@pytest.mark.gpu
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
def test_the_gpu_resizes_as_the_cpu_does(filter, tf32):
    batch = chelsea()[None]
    expected = resize_batch(batch, 224, 200, filter)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        got = resize_batch(batch.cuda(), 224, 200, filter)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert got.is_cuda
    assert (got.cpu().int() - expected.int()).abs().max() <= 1
    assert resize_batch(batch[:0].cuda(), 8, 8).shape == (0, 3, 8, 8)


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def with_pillow(pixels, height, width, filter):
    # Pillow before 13 and torch begin with the width, Pillow 13 sometimes with the height. Where
    # bicubic weights overshoot black or white in between, that makes a difference.
    image, filter = Image.fromarray(pixels), Image.Resampling[filter.upper()]
    return np.asarray(image.resize((width, image.height), filter).resize((width, height), filter))


@settings(max_examples=150)
@given(
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.sampled_from(["bilinear", "bicubic"]),
    st.integers(0, 5),
)
def test_any_shape_becomes_any_other_as_in_pillow(old, new, filter, seed):
    pixels = noise(*old, seed)
    # One pass, the other, and both, of which each may round another way.
    for size, most in (((old[0], new[1]), 1), ((new[0], old[1]), 1), (new, 2)):
        resized, expected = resize(pixels, *size, filter), with_pillow(pixels, *size, filter)
        assert (resized.dtype, resized.shape) == (np.uint8, expected.shape)
        assert np.abs(resized.astype(int) - expected).max() <= most


def test_an_image_of_the_right_size_is_not_touched():
    pixels = noise(20, 30)
    assert resize(pixels, 20, 30) is pixels
    assert resize(noise(50, 60), 20, 30).strides == (90, 3, 1)  # pixels one after another
