"""Decoding for a purpose: JPEGs at a part of their size, images turned upright."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from datapipe.decode.image import decode_for, decode_rgb
from datapipe.decode.resize import resize
from tests.case_files import cases

from .image_kinds import exif


def always(height, width):
    return lambda *_: (height, width)


def fitted(pixels, height, width):
    return torch.from_numpy(resize(pixels, height, width)).permute(2, 0, 1).int()


@pytest.mark.parametrize(("target", "decoded"), cases("decode/scaled"))
def test_a_jpeg_is_decoded_as_small_as_covers_the_target(encode, crop, target, decoded):
    image = decode_for(encode(crop(size=(120, 96))), always(*map(int, target.split())))
    assert image.pixels.shape == (*map(int, decoded.split()), 3)
    assert (image.width, image.height) == (120, 96)


@settings(max_examples=100)
@given(
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    target=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    orientation=st.integers(1, 8),
)
def test_scaling_never_goes_below_the_target(encode, size, target, orientation):
    gradient = np.linspace(0, 255, size[0] * size[1] * 3).reshape(size[1], size[0], 3)
    data = encode(Image.fromarray(gradient.astype(np.uint8)), exif=exif(orientation))
    whole = decode_for(data)
    asked = []
    image = decode_for(data, lambda height, width: asked.append((height, width)) or target)
    assert asked == [whole.pixels.shape[:2]]
    sides = list(zip(image.pixels.shape[:2], asked[0], target, strict=True))
    assert all(min(least, full) <= scaled <= full for scaled, full, least in sides)
    assert any(
        all(abs(scaled * factor - full) <= factor / 2 for scaled, full, _ in sides)
        for factor in (1, 2, 4, 8)
    )


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG that only Pillow takes"])
@pytest.mark.parametrize("orientation", [1, 4, 6, 7])
def test_other_images_are_decoded_whole(encode, crop, kind, orientation):
    data = encode(crop(), kind.split()[0], exif=exif(orientation))
    if kind not in ("PNG", "WEBP"):
        data = data[:-2] + bytes(5) + data[-2:]
    image = decode_for(data, always(2, 2))
    assert np.array_equal(image.pixels, decode_rgb(data))


TURNED = "FLIP_LEFT_RIGHT ROTATE_180 FLIP_TOP_BOTTOM TRANSPOSE ROTATE_270 TRANSVERSE ROTATE_90"


@pytest.mark.parametrize(("orientation", "turned"), [*enumerate(TURNED.split(), 2)])
def test_a_scaled_image_is_turned_as_a_whole_one(encode, crop, orientation, turned):
    picture = crop(size=(93, 75))
    plain = Image.fromarray(decode_for(encode(picture), always(10, 10)).pixels)
    found = decode_for(encode(picture, exif=exif(orientation)), always(10, 10)).pixels
    assert np.array_equal(found, np.asarray(plain.transpose(Image.Transpose[turned])))


@pytest.mark.parametrize(("gap", "most"), [(1, 4.0), (2, 1.5)])
@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("extra", [0, 1, 5])
def test_a_scaled_photograph_looks_like_the_whole_one(encode, crop, factor, gap, most, extra):
    width, height = 448 + extra, 288 + extra
    data = encode(crop("coffee.png", (width, height), 0), quality=92)
    size = height // (factor * gap), width // (factor * gap)
    target = always(gap * size[0], gap * size[1])
    scaled = decode_for(data, target).pixels
    assert scaled.shape[0] in (height // factor, -(-height // factor))
    difference = fitted(scaled, *size) - fitted(decode_rgb(data), *size)
    assert difference.abs().float().mean() <= most


def test_an_edge_that_lies_outside_of_the_image_is_left_out(encode):
    # 65 columns at an eighth are 9, of the last of which an eighth shows the image.
    data = encode(Image.new("RGB", (65, 70), (10, 20, 30)))
    assert decode_for(data, always(8, 8)).pixels.shape == (9, 8, 3)
