"""Encoded images to upright RGB: what every kind of image means."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from datapipe.decode.image import check_image, decode_for, decode_rgb
from datapipe.decode.shrink import ShrinkOptions, shrink
from datapipe.errors import DecodeError
from datapipe.index.images.header import probe

from .image_kinds import exif


def pillow_rgb(data):
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


def assert_close(pixels, expected, most=0):
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert pixels.shape == expected.shape
    assert np.abs(pixels.astype(int) - expected.astype(int)).max(initial=0) <= most


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("PNG", "RGB"),
        ("PNG", "P"),
        ("PNG", "1"),
        ("GIF", "P"),
        *((kind, "RGB") for kind in ("BMP", "PPM", "TIFF")),
    ],
)
def test_lossless_formats_keep_their_pixels(encode, crop, kind, mode):
    image = crop().quantize(32) if mode == "P" else crop().convert(mode)
    assert_close(decode_rgb(encode(image, kind)), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_greyscale_becomes_three_equal_channels(encode, crop, kind):
    pixels = decode_rgb(encode(crop().convert("L"), kind))
    assert pixels.shape == (32, 48, 3)
    assert (np.ptp(pixels, axis=2) <= 1).all()
    assert np.ptp(pixels) > 50


def test_cmyk_becomes_rgb_as_pillow_converts_it(encode, crop):
    data = encode(crop().convert("CMYK"), exif=exif(6))
    assert_close(decode_rgb(data), pillow_rgb(data))


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_transparent_pixels_are_laid_over_white(encode, crop, kind):
    image = crop().convert("RGBA")
    alpha = np.zeros((32, 48), np.uint8)
    alpha[:, 16:32] = 255
    alpha[:, 32:] = 128
    image.putalpha(Image.fromarray(alpha))
    pixels = decode_rgb(encode(image, kind, **({"lossless": True} if kind == "WEBP" else {})))
    below = np.asarray(crop())
    assert (pixels[:, :16] == 255).all()
    assert_close(pixels[:, 16:32].copy(), below[:, 16:32])
    half = np.rint(255 + (below[:, 32:].astype(float) - 255) * 128 / 255).astype(np.uint8)
    assert_close(pixels[:, 32:].copy(), half, most=1)


def test_grey_with_alpha_is_laid_over_white(encode, crop):
    image = crop().convert("LA")
    image.putalpha(0)
    assert (decode_rgb(encode(image, "PNG")) == 255).all()


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


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_an_animation_gives_its_first_frame(encode, kind):
    first, second = Image.new("RGB", (8, 8), (255, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 255))
    how = {"lossless": True} if kind == "WEBP" else {}
    data = encode(first, kind, save_all=True, append_images=[second], duration=50, **how)
    assert Image.open(io.BytesIO(data)).n_frames == 2
    assert (decode_rgb(data) == [255, 0, 0]).all()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.98])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "progressive", "CMYK", "grey"])
def test_a_truncated_image_is_a_decode_error(encode, crop, kind, share):
    image = crop("coffee.png", (96, 80), 0)
    image = image.convert({"CMYK": "CMYK", "grey": "L"}.get(kind, "RGB"))
    if kind in ("PNG", "WEBP"):
        data = encode(image, kind)
    else:
        data = encode(image, progressive=kind == "progressive")
    with pytest.raises(DecodeError):
        decode_rgb(data[: int(len(data) * share)])


def test_bytes_that_belong_to_nothing_do_not_cost_the_image(encode, crop):
    for data in (encode(), encode(crop().convert("L"))):
        start = data.index(b"\xff\xdb")
        for other in (
            data[:-2] + bytes(5) + data[-2:],
            data[:start] + bytes(3) + data[start:],
            data + b"appended by a camera",
        ):
            assert_close(decode_rgb(other), decode_rgb(data))


@pytest.mark.parametrize("where", ["revision", "scan"])
def test_header_values_that_mean_nothing_do_not_cost_the_image(encode, where):
    data = bytearray(encode())
    expected = decode_rgb(bytes(data))
    if where == "revision":
        data[data.index(b"JFIF\0") + 5] = 9  # was never published
    else:
        scan = data.index(b"\xff\xda")
        data[scan + 2 + data[scan + 3] - 2] = 0  # last coefficient; always 63 in baseline
    assert_close(decode_rgb(bytes(data)), expected)


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
