"""Encoded images to upright RGB: what every kind of image means, and how damage is judged."""

import re
import struct
from random import Random

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from datapipe.decode.image import check_image, decode_for, decode_rgb
from datapipe.decode.resize import resize
from datapipe.decode.shrink import ShrinkOptions, shrink
from datapipe.errors import DecodeError
from datapipe.index.images.header import probe

from .image_kinds import LOSSLESS, assert_as_pillow, changed, exif, kinds, shown


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
def test_each_way_to_read_refuses_damage_and_too_many_pixels(encode, crop, read):
    read(LOSSLESS)  # which cannot be decoded scaled
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


def test_a_lossless_jpeg_is_the_same_to_each_way_to_read():
    for made in (decode_rgb(LOSSLESS), READERS["decode_for"](LOSSLESS)):
        assert made.shape == (64, 64, 3)
        assert (made == [200, 100, 50]).all()
    small = decode_rgb(READERS["shrink"](LOSSLESS)[0])
    assert_close(small, np.full((20, 20, 3), (200, 100, 50)), most=3)


# `check_image` says what `decode_rgb` would say.

JPEGS = (
    {"subsampling": "4:2:0"},
    {"subsampling": "4:2:2", "optimize": True},
    {"subsampling": "4:4:4", "quality": 95},
    {"keep_rgb": True},
    {"restart_marker_blocks": 4},
    {"progressive": True},
    {"progressive": True, "subsampling": "4:4:4"},
    {"progressive": True, "restart_marker_blocks": 5},
)
MARKERS = (0x01, 0xC0, 0xC2, 0xC3, 0xC4, 0xD0, 0xD5, 0xD8, 0xD9, 0xDA, 0xDB, 0xDC, 0xDD, 0xE1, 0xFE)
RESTARTS = range(0xD0, 0xD8)


def segments(data):
    """(start, end) of each segment of a JPEG, entropy-coded data counted to its scan's header."""
    found, start = [], 2
    while data[start + 1] != 0xD9:
        end = start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")
        while data[start + 1] == 0xDA and (data[end] != 0xFF or data[end + 1] in (0, *RESTARTS)):
            end += 1
        found.append((start, end))
        start = end
    return found


def one_scan_per_component(encode, image):
    """A sequential 4:2:0 JPEG whose components do not share a scan."""
    width, height = image.size
    planes = image.convert("YCbCr").split()
    sizes = [(width, height)] + [((width + 1) // 2, (height + 1) // 2)] * 2
    greys = [
        encode(plane.resize(size), quality=80) for plane, size in zip(planes, sizes, strict=True)
    ]
    parts = [b"\xff\xd8"]
    for start, end in segments(greys[0]):
        if greys[0][start + 1] == 0xC0:
            sampling = bytes([1, 0x22, 0, 2, 0x11, 0, 3, 0x11, 0])
            parts.append(struct.pack(">BBHBHHB", 255, 0xC0, 17, 8, height, width, 3) + sampling)
        elif greys[0][start + 1] != 0xDA:
            parts.append(greys[0][start:end])
    for number, grey in enumerate(greys, 1):
        start, end = segments(grey)[-1]
        parts.append(grey[start : start + 5] + bytes([number]) + grey[start + 6 : end])
    return b"".join([*parts, b"\xff\xd9"])


def jpegs(encode, crop):
    image = crop("coffee.png", (61, 45), 0)
    grey = image.convert("L")
    return [
        *(encode(image, **save) for save in JPEGS),
        simplejpeg.encode_jpeg(np.asarray(image), colorsubsampling="411"),
        encode(grey),
        encode(grey, progressive=True),
        encode(image.convert("CMYK")),
        one_scan_per_component(encode, image),
    ]


def damage(data, rng):
    """A random change of a JPEG: bits, bytes, ranges, segments, the end."""
    start = rng.randrange(rng.choice((len(data), min(len(data), 700))))
    end = min(len(data), start + rng.choice((1, 1, 2, 8, 64, 300)))
    before, hit, after = data[:start], data[start:end], data[end:]
    (a, b), (c, d) = sorted(rng.sample(segments(data), 2))
    marker = bytes([0xFF, rng.choice(MARKERS)])
    return rng.choice(
        (
            lambda: before + bytes([hit[0] ^ 1 << rng.randrange(8)]) + hit[1:] + after,
            lambda: before,
            lambda: before + bytes(len(hit)) + after,
            lambda: before + hit + hit + after,
            lambda: before + after,
            lambda: before + rng.randbytes(len(hit)) + hit + after,
            lambda: before + marker + rng.choice((b"", b"\0\2", b"\0\4\0\1")) + hit + after,
            lambda: before + marker + hit[2:] + after,
            lambda: data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:],
            lambda: data[:a] + data[b:],
            lambda: data[:b] + data[a:],
            lambda: data[: a + 1] + bytes([rng.choice(MARKERS)]) + data[a + 2 :],
            lambda: data[:-2] + rng.choice((b"", b"\0\0\0\xff\xd9", marker + b"\xff\xd9")),
            lambda: data + rng.choice((bytes(9), rng.randbytes(9), data[:50], marker)),
        )
    )()


def reason(function, *args, **options):
    try:
        function(*args, **options)
    except DecodeError as error:
        return error.reason


def verdict(damaged):
    """Return whether both the check and decoding call an image whole; None without a header."""
    try:
        info = probe(damaged)
    except DecodeError:
        return None
    said = reason(check_image, damaged, info, max_pixels=10**6)
    assert said == reason(decode_rgb, damaged, max_pixels=10**6)
    return said is None


def test_damaged_jpegs_are_judged_as_decoding_judges_them(encode, crop):
    rng = Random(0)
    verdicts = [verdict(damage(data, rng)) for data in jpegs(encode, crop) for _ in range(115)]
    assert min(verdicts.count(True), verdicts.count(False)) > 400


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM"])
def test_other_damaged_images_are_judged_as_decoding_judges_them(encode, crop, kind):
    rng, data = Random(0), encode(crop(), kind)
    for _ in range(60):
        position = rng.randrange(len(data))
        verdict(data[:position] + rng.choice((b"", rng.randbytes(1) + data[position + 1 :])))


def test_every_kind_of_image_is_judged_as_decoding_judges_it_also_in_a_view(encode, crop):
    for name, data in [*kinds(encode, crop).items(), *enumerate(jpegs(encode, crop))]:
        view = memoryview(bytearray(b"before" + data + b"behind"))[6 : 6 + len(data)]
        told = reason(decode_rgb, data)
        assert told is None or isinstance(name, str), name
        assert reason(decode_rgb, view) == told, name
        assert reason(probe, view) == reason(probe, data), name
        if reason(probe, data) is None:
            assert probe(view) == probe(data)
            assert reason(check_image, view, probe(view)) == told, name
        if told is None:
            assert (decode_rgb(view) == decode_rgb(data)).all()
        if name == "JPEG of two components":  # whose reason is the same in every run
            assert told == "Pillow cannot read the header"


@pytest.mark.parametrize("marker", [0xC3, 0xC7, 0xC9, 0xCB])
def test_only_jpegs_that_libjpeg_can_scale_are_decoded_scaled(encode, marker):
    data = encode()
    start = data.index(b"\xff\xc0")
    assert probe(data).scalable
    for other in (changed(data, start + 1, marker), changed(data, start + 4, 12)):  # bits
        assert not probe(other).scalable
        assert reason(check_image, other, probe(other)) == reason(decode_rgb, other)


# Decoding for a purpose: JPEGs at a part of their size.


def always(height, width):
    return lambda *_: (height, width)


SIDES = st.integers(1, 9) | st.integers(1, 70)


@settings(max_examples=200)
@given(st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES), st.integers(1, 8))
def test_a_jpeg_is_decoded_as_small_as_covers_the_target(encode, size, target, orientation):
    gradient = np.linspace(0, 255, size[0] * size[1] * 3).reshape(size[1], size[0], 3)
    data = encode(Image.fromarray(gradient.astype(np.uint8)), exif=exif(orientation))
    whole = decode_for(data).pixels.shape[:2]
    asked = []
    image = decode_for(data, lambda height, width: asked.append((height, width)) or target)
    assert asked == [whole] == [(image.height, image.width)]
    most = min(side // wanted for side, wanted in zip(whole, target, strict=True))
    factor = max(factor for factor in (1, 2, 4, 8) if factor <= max(most, 1))
    if max(whole) < 8:  # libjpeg does not scale it
        factor = 1
    # A last row or column that is mostly outside of the image is left out.
    assert image.pixels.shape[:2] == tuple((side + factor // 2) // factor for side in whole)


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
    difference = resize(scaled, *size).astype(int) - resize(decode_rgb(data), *size)
    assert np.abs(difference).mean() <= most
