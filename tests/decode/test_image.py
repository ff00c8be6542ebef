"""Encoded images to upright RGB: what every kind of image means."""

import re

import numpy as np
import pytest
from PIL import Image

from datapipe.decode.image import check_image, decode_for, decode_rgb
from datapipe.decode.shrink import ShrinkOptions, shrink
from datapipe.errors import DecodeError
from datapipe.index.images.header import probe

from .image_kinds import assert_as_pillow, exif, kinds, shown


def assert_close(pixels, expected, most=0):
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert pixels.shape == expected.shape
    assert np.abs(pixels.astype(int) - expected.astype(int)).max(initial=0) <= most


OF_OUR_OWN = re.compile("16-bit|transparent|floating|alpha|PNG LA|TIFF LA|PNG RGBA|TIFF RGBA")
"""Kinds that Pillow shows otherwise: tests below say what they mean."""


def test_every_other_kind_of_image_is_shown_as_by_pillow_or_refused_with_it(encode, crop):
    seen = {True: 0, False: 0}
    for name, data in kinds(encode, crop).items():
        is_shown = shown(data) is not None
        if not is_shown:
            with pytest.raises(DecodeError):
                decode_rgb(data)
        elif not OF_OUR_OWN.search(name):
            assert_as_pillow(data)
        seen[is_shown] += 1
    assert min(seen.values()) > 20
    assert (np.ptp(decode_rgb(encode(crop().convert("L"))), axis=2) == 0).all()


@pytest.mark.parametrize(("kind", "mode"), [("PNG", "RGBA"), ("WEBP", "RGBA"), ("PNG", "LA")])
def test_transparent_pixels_are_laid_over_white(encode, crop, kind, mode):
    image = crop().convert(mode)
    below = np.asarray(image.convert("RGB"))
    alpha = np.zeros((32, 48), np.uint8)
    alpha[:, 16:32] = 255
    alpha[:, 32:] = 128
    image.putalpha(Image.fromarray(alpha))
    pixels = decode_rgb(encode(image, kind, **({"lossless": True} if kind == "WEBP" else {})))
    assert (pixels[:, :16] == 255).all()
    assert_close(pixels[:, 16:32].copy(), below[:, 16:32])
    half = np.rint(255 + (below[:, 32:].astype(float) - 255) * 128 / 255).astype(np.uint8)
    assert_close(pixels[:, 32:].copy(), half, most=1)


@pytest.mark.parametrize("mode", ["P", "RGB", "L"])
def test_a_transparent_colour_is_laid_over_white(encode, mode):
    image = Image.new(mode, (4, 4), 0)
    image.paste(1 if mode == "P" else (255, 0, 0) if mode == "RGB" else 90, (0, 0, 2, 4))
    if mode == "P":
        image.putpalette([0, 0, 0, 255, 0, 0])
    data = encode(image, "PNG", transparency=(0, 0, 0) if mode == "RGB" else 0)
    pixels = decode_rgb(data)
    assert (pixels[:, 2:] == 255).all()
    assert (pixels[:, :2] == ([90] * 3 if mode == "L" else [255, 0, 0])).all()


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_grey_keeps_its_high_byte(encode, kind):
    values = np.linspace(0, 65535, 48 * 32).reshape(32, 48).astype(np.uint16)
    pixels = decode_rgb(encode(Image.fromarray(values), kind))
    assert_close(pixels, np.repeat((values >> 8).astype(np.uint8)[..., None], 3, axis=2))


READERS = {
    "decode_rgb": decode_rgb,
    "decode_for": lambda data, **limit: decode_for(data, lambda *_: (10, 12), **limit).pixels,
    "check_image": lambda data, **limit: check_image(data, probe(data), **limit),
    "shrink": lambda data, **limit: shrink(data, probe(data), ShrinkOptions(max_side=20), **limit),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_each_way_to_read_refuses_damage_and_too_many_pixels(encode, crop, lossless_jpeg, read):
    read(lossless_jpeg)  # which cannot be decoded scaled
    large = crop("coffee.png", (192, 160), 0)
    holes = bytearray(encode(large, restart_marker_blocks=4))
    holes[-900:-300] = bytes(600)
    png = bytearray(encode(kind="PNG"))
    png[-20] ^= 1
    for data, message in (
        (bytes(holes), "JPEG is damaged"),
        (encode(large)[:-900], "JPEG is damaged"),
        (encode(large, exif=exif(6))[:-900], "JPEG is damaged"),
        (encode(large, "WEBP")[:-900], None),
        (bytes(png), "checksum of the IDAT chunk"),
        (png[:16] + (60_000).to_bytes(4, "big") * 2 + png[24:], "60000x60000 is 3,600,000,000 pix"),
        (encode(Image.fromarray(np.zeros((40, 40), np.float32)), "TIFF"), "convert them to 8 bits"),
        *((data, None) for data in (b"", b"<html>", b"\xff\xd8\xff")),
    ):
        with pytest.raises(DecodeError, match=message):
            read(data)
    message = "48x32 is 1,536 pixels, more than the limit of 1,535"
    for data in (encode(), encode(kind="PNG"), encode(kind="WEBP")):
        read(data, max_pixels=48 * 32)
        with pytest.raises(DecodeError, match=message):
            read(data, max_pixels=48 * 32 - 1)


def test_a_lossless_jpeg_is_the_same_to_each_way_to_read(lossless_jpeg):
    for made in (decode_rgb(lossless_jpeg), READERS["decode_for"](lossless_jpeg)):
        assert made.shape == (64, 64, 3)
        assert (made == [200, 100, 50]).all()
    small = decode_rgb(READERS["shrink"](lossless_jpeg)[0])
    assert_close(small, np.full((20, 20, 3), (200, 100, 50)), most=3)
