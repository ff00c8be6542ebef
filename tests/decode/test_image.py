"""Encoded images to upright RGB: what every kind of image means."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from datapipe.decode.image import decode_rgb
from datapipe.errors import DecodeError


def exif(orientation):
    block = Image.Exif()
    block[0x0112] = orientation
    return block


def pillow_rgb(data):
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


def assert_close(pixels, expected, most=0):
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert pixels.shape == expected.shape
    assert np.abs(pixels.astype(int) - expected.astype(int)).max(initial=0) <= most


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_applied_as_pillow_applies_it(encode, kind, orientation):
    data = encode(kind=kind, exif=exif(orientation))
    assert_close(decode_rgb(data), pillow_rgb(data), most=1)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "PPM", "TIFF"])
def test_lossless_formats_keep_their_pixels(encode, crop, kind):
    image = crop().quantize(32) if kind == "GIF" else crop()
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


def test_one_bit_images_are_black_and_white(encode, crop):
    pixels = decode_rgb(encode(crop().convert("1"), "PNG"))
    assert set(np.unique(pixels)) == {0, 255}


def test_a_palette_is_looked_up(encode, crop):
    image = crop().quantize(16)
    assert_close(decode_rgb(encode(image, "PNG")), np.asarray(image.convert("RGB")))


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


def test_floating_point_pixels_are_refused_with_a_remedy(encode):
    image = Image.fromarray(np.zeros((4, 4), np.float32))
    with pytest.raises(DecodeError, match="convert them to 8 bits"):
        decode_rgb(encode(image, "TIFF"))


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


def test_damaged_jpeg_data_is_a_decode_error(encode, crop):
    data = bytearray(encode(crop("coffee.png", (96, 80), 0), restart_marker_blocks=4))
    start = data.index(b"\xff\xda") + 60
    data[start : start + 400] = bytes(400)
    with pytest.raises(DecodeError, match="JPEG is damaged"):
        decode_rgb(bytes(data))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_bytes_before_the_end_marker_do_not_cost_the_image(encode, crop, mode):
    data = encode(crop().convert(mode))
    padded = data[:-2] + bytes(5) + data[-2:]
    assert_close(decode_rgb(padded), decode_rgb(data))


def test_bytes_between_header_segments_do_not_cost_the_image(encode):
    data = encode()
    start = data.index(b"\xff\xdb")
    assert_close(decode_rgb(data[:start] + bytes(3) + data[start:]), decode_rgb(data))


def test_bytes_behind_the_end_do_not_cost_the_image(encode):
    data = encode()
    assert_close(decode_rgb(data + b"appended by a camera"), decode_rgb(data))


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


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_more_pixels_than_the_limit_are_refused_before_decoding(encode, kind):
    data = encode(kind=kind)
    assert decode_rgb(data, max_pixels=48 * 32).shape == (32, 48, 3)
    with pytest.raises(DecodeError, match="48x32 is 1,536 pixels, more than the limit of 1,535"):
        decode_rgb(data, max_pixels=48 * 32 - 1)


def test_a_decompression_bomb_is_refused_by_its_header(encode):
    data = encode(kind="PNG")
    bomb = data[:16] + (60_000).to_bytes(4, "big") * 2 + data[24:]
    with pytest.raises(DecodeError, match=r"60000x60000 is 3,600,000,000 pixels"):
        decode_rgb(bomb)


@pytest.mark.parametrize("data", [b"", b"<html>", b"\xff\xd8\xff"])
def test_what_is_no_image_is_a_decode_error(data):
    with pytest.raises(DecodeError):
        decode_rgb(data)


@pytest.mark.parametrize("chunk", [b"IHDR", b"IDAT", b"PLTE"])
def test_a_png_chunk_whose_checksum_is_wrong_is_a_decode_error(encode, crop, chunk):
    data = bytearray(encode(crop().quantize(16), "PNG"))
    start = data.index(chunk)
    length = int.from_bytes(data[start - 4 : start], "big")
    data[start + 4 + length] ^= 1
    with pytest.raises(DecodeError, match=f"checksum of the {chunk.decode()} chunk|not an image"):
        decode_rgb(bytes(data))
