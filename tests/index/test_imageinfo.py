"""What `probe` says of an image, against Pillow, and what it says of everything else."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from datapipe.errors import DecodeError
from datapipe.index.images.header import NeedMoreData, is_image_extension, probe

KINDS = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "BMP": "bmp", "TIFF": "tif"}
ORIENTATION = 0x0112


def exif(orientation, **other):
    block = Image.Exif()
    block[ORIENTATION] = orientation
    block[0x010F] = other.get("maker", "a maker")  # an entry before the orientation
    return block


@pytest.mark.parametrize(("kind", "ext"), KINDS.items())
def test_format_and_size_of_every_common_format(encode, crop, kind, ext):
    info = probe(encode(crop(size=(37, 23)), kind))
    assert (info.format, info.width, info.height) == (ext, 37, 23)
    assert info.upright == (37, 23)
    assert info.orientation == 1


@pytest.mark.parametrize(
    ("mode", "components"), [("L", 1), ("RGB", 3), ("CMYK", 4)], ids=["grey", "colour", "cmyk"]
)
def test_jpeg_tells_its_colour_components(encode, crop, mode, components):
    assert probe(encode(crop().convert(mode))).components == components


def test_orientation_outside_1_to_8_means_upright(encode):
    assert probe(encode(exif=exif(9))).orientation == 1


def test_damaged_exif_does_not_cost_the_image(encode):
    data = encode(exif=exif(6))
    start = data.index(b"Exif\0\0") + 6
    for broken in (b"XX", b"II\x2a\x00\xff\xff\xff\x7f"):
        damaged = data[:start] + broken + data[start + len(broken) :]
        assert probe(damaged).orientation == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "file is empty"),
        (b"<!DOCTYPE html><html></html>", "HTML page"),
        (b"\n <HTML><body>", "HTML page"),
        (b"<?xml version='1.0'?><svg/>", "XML or SVG"),
        (b'{"error": "not found"}', "looks like JSON"),
        (bytes(1000), "zero bytes"),
        (b"\xff\xd8", "before its frame header"),
        (b"\xff\xd8\xff\xd9", "no frame header"),
        (b"\x89PNG\r\n\x1a\n", "no IHDR"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
    ],
)
def test_what_is_no_image_is_refused_with_what_it_is(data, reason):
    with pytest.raises(DecodeError, match=reason):
        probe(data)


@pytest.mark.parametrize(
    ("kind", "size"), [("JPEG", b"\0\x20\0\x30"), ("PNG", b"\0\0\0\x30\0\0\0\x20")]
)
def test_an_image_without_pixels_is_refused(encode, kind, size):
    with pytest.raises(DecodeError, match="gives 0x0 pixels"):
        probe(encode(kind=kind).replace(size, bytes(len(size)), 1))


def test_a_prefix_gives_the_same_as_the_whole_or_asks_for_more(encode, crop):
    data = encode(crop(size=(37, 23)), exif=exif(6, maker="m" * 3000), icc_profile=bytes(5000))
    whole = probe(data)
    answers = []
    for length in range(0, len(data), 7):
        try:
            answers.append(probe(data[:length], complete=False))
        except NeedMoreData:
            answers.append(None)
    assert whole.upright == (23, 37)
    assert set(answers) == {None, whole}
    assert answers == sorted(answers, key=lambda answer: answer is not None)


@pytest.mark.parametrize("garbage", [b"\0", b"abc", b"\xff\0", b"\xff\xff\xff"])
def test_bytes_between_jpeg_segments_are_passed_over(encode, garbage):
    data = encode(exif=exif(6))
    start = data.index(b"\xff\xdb")
    assert probe(data[:start] + garbage + data[start:]) == probe(data)


@given(st.binary(max_size=200))
def test_hostile_bytes_give_a_decode_error_or_an_image(tail):
    for head in (b"", b"\xff\xd8", b"\xff\xd8\xff\xe1\0\x40Exif\0\0II", b"\x89PNG\r\n\x1a\n"):
        with suppress(DecodeError):
            assert min(probe(head + tail).upright) > 0


def test_image_extensions_are_known_in_any_case_and_behind_a_prefix():
    assert all(map(is_image_extension, ["jpg", "JPEG", "1.jpg", "left.eye.PNG", "webp", "tiff"]))
    assert not any(map(is_image_extension, ["", *["txt", "json", "jpg.txt", "cls", "jpgx", "svg"]]))
