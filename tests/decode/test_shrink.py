"""Images made smaller on their way into shards."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from datapipe.decode.image import check_image, decode_rgb
from datapipe.decode.shrink import ShrinkOptions, shrink
from datapipe.errors import DecodeError
from datapipe.index.images.header import ImageInfo, probe

from .image_kinds import exif

# What Pillow can write. WebP and AVIF turn everything into RGB or RGBA themselves.
MODES = {
    "JPEG": "1 L RGB CMYK YCbCr",
    "PNG": "1 L LA P RGB RGBA I;16",
    "WEBP": "L RGB RGBA",
    "GIF": "1 L P RGB RGBA",
    "BMP": "1 L P RGB RGBA",
    "TIFF": "1 L LA P PA RGB RGBA CMYK YCbCr I;16 I",
    "PPM": "1 L RGB RGBA I;16 I",
    "AVIF": "L RGB RGBA",
    "JPEG2000": "L LA RGB RGBA CMYK YCbCr I;16",
}


def shrunk(data, **options):
    """The new image and its facts, which are right; None where it stays."""
    made = shrink(data, probe(data), ShrinkOptions(**options))
    if made is not None:
        assert probe(made[0]) == made[1]
        assert made[1].orientation == 1
        check_image(*made)
    return made


def as_mode(image, mode):
    if mode in ("I", "I;16"):
        values = np.asarray(image.convert("L")).astype(np.uint16) * 257
        return Image.fromarray(values.astype(np.int32) if mode == "I" else values)
    image = image.convert({"LA": "L", "PA": "P"}.get(mode, "RGB")).convert(mode)
    if mode in ("LA", "RGBA"):
        image.putalpha(100)
    return image


def away(pixels, expected):
    """Mean and largest distance."""
    distance = np.abs(pixels.astype(int) - expected.astype(int))
    return distance.mean(), distance.max()


@pytest.mark.parametrize(
    ("kind", "mode"), [(kind, mode) for kind, modes in MODES.items() for mode in modes.split()]
)
@pytest.mark.parametrize("image_format", ["keep", "jpg", "webp"])
def test_every_kind_of_image_comes_out_as_training_would_see_it(
    encode, crop, kind, mode, image_format
):
    data = encode(as_mode(crop(size=(64, 48)), mode), kind)
    seen = decode_rgb(data)
    new, info = shrunk(data, max_side=32, image_format=image_format, quality=95)
    kept = {"JPEG": "jpg", "WEBP": "webp"}.get(kind, "png")
    assert (info.format, info.upright) == (
        kept if image_format == "keep" else image_format,
        (32, 24),
    )
    expected = np.asarray(Image.fromarray(seen).resize((32, 24), Image.Resampling.LANCZOS))
    mean, most = away(decode_rgb(new), expected)
    assert mean < (0.6 if info.format == "png" else 8)
    assert most <= (1 if info.format == "png" else 130)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied(encode, crop, kind, orientation):
    data = encode(crop(size=(120, 80)), kind, exif=exif(orientation), quality=95)
    new, info = shrunk(data, max_side=60, quality=95)
    assert info.upright == ((60, 40) if orientation < 5 else (40, 60))
    full = Image.fromarray(decode_rgb(data))
    expected = np.asarray(full.resize(info.upright, Image.Resampling.LANCZOS))
    assert away(decode_rgb(new), expected)[0] < 5


@pytest.mark.parametrize("factor", [2, 4, 8, 11])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_jpeg_decoded_scaled_looks_like_one_that_was_not(encode, crop, mode, factor):
    width, height = 41 * factor * 2 + 3, 30 * factor * 2 + 1
    image = crop("coffee.png", (60, 44), 0).resize((width, height), Image.Resampling.BICUBIC)
    data = encode(image.convert(mode), "JPEG", quality=92)
    new, info = shrunk(data, max_side=41, image_format="jpg", quality=100)
    full = Image.fromarray(decode_rgb(data))
    expected = np.asarray(full.resize(info.upright, Image.Resampling.LANCZOS))
    mean, most = away(decode_rgb(new).mean(axis=2), expected.mean(axis=2))
    assert mean < 1.5
    assert most < 20


def test_grey_jpegs_stay_grey(encode, crop):
    data = encode(crop().convert("L"), "JPEG")
    assert shrunk(data, max_side=20)[1] == ImageInfo("jpg", 20, 13, 1, 1, True)
    assert shrunk(encode(crop().convert("L"), "PNG"), image_format="jpg")[1].components == 1


@given(
    width=st.integers(1, 400),
    height=st.integers(1, 400),
    max_side=st.integers(1, 500),
    kind=st.sampled_from(["JPEG", "PNG", "WEBP", "BMP"]),
    image_format=st.sampled_from(["keep", "jpg", "webp"]),
    mode=st.sampled_from(["RGB", "L"]),
)
@settings(max_examples=150)
def test_sizes_fit_and_keep_their_proportions(
    encode, width, height, max_side, kind, image_format, mode
):
    data = encode(Image.new("L", (width, height), 90).convert(mode), kind)
    made = shrunk(data, max_side=max_side, image_format=image_format)
    target = probe(data).format if image_format == "keep" else image_format
    if made is None:
        assert max(width, height) <= max_side
        assert target == probe(data).format
        return
    new, info = made
    scale = min(1, max_side / max(width, height))
    assert max(info.upright) == min(max_side, max(width, height))
    assert abs(info.width - max(1, width * scale)) <= 0.5
    assert abs(info.height - max(1, height * scale)) <= 0.5
    assert away(decode_rgb(new), np.full((info.height, info.width, 3), 90))[1] <= 3


@pytest.mark.parametrize("kind", MODES)
def test_an_image_that_fits_keeps_its_bytes(encode, crop, kind):
    data = encode(crop(), kind)
    assert shrunk(data, max_side=48) is None
    assert shrunk(data, max_side=48, quality=99) is None
    if kind in ("JPEG", "WEBP"):  # with its orientation
        turned = encode(crop(), kind, exif=exif(6))
        assert shrunk(turned, image_format={"JPEG": "jpg", "WEBP": "webp"}[kind]) is None


@pytest.mark.parametrize("image_format", ["keep", "jpg", "webp"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
def test_colour_profile_and_metadata_are_left_behind(encode, crop, kind, image_format):
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    data = encode(crop(), kind, icc_profile=profile, exif=exif(3), dpi=(300, 300))
    new, _ = shrunk(data, max_side=20, image_format=image_format)
    with Image.open(io.BytesIO(new)) as image:
        assert not {"icc_profile", "exif"} & set(image.info)


def test_a_jpeg_finer_than_the_quality_asked_for_is_encoded_anew(encode, crop):
    data = encode(crop(size=(96, 64)), "JPEG", quality=95)
    new, info = shrunk(data, quality=70)
    assert info == ImageInfo("jpg", 96, 64, 1, 3, True)
    assert len(new) < len(data)
    assert shrunk(new, quality=70) is None
    assert shrunk(data, quality=96) is None


def test_a_jpeg_that_would_not_become_smaller_keeps_its_bytes(encode):
    # Optimal Huffman tables outweigh the quality of a picture without any detail.
    data = encode(Image.new("RGB", (64, 64), (9, 9, 9)), "JPEG", quality=95, optimize=True)
    assert shrunk(data, quality=90) is None


@pytest.mark.parametrize(
    ("image_format", "side", "limit"), [("webp", 16_384, "16,383"), ("jpg", 65_501, "65,500")]
)
def test_an_image_too_long_for_its_format_is_refused_with_a_remedy(
    encode, image_format, side, limit
):
    data = encode(Image.new("L", (side, 1)), "PNG")
    with pytest.raises(DecodeError, match=rf"{side}x1 pixels.*{limit}; .*--max-side"):
        shrunk(data, image_format=image_format)
    most = int(limit.replace(",", ""))
    assert shrunk(data, image_format=image_format, max_side=most)[1].width == most


def test_a_jpeg_too_long_to_be_written_keeps_its_bytes(encode):
    data = encode(Image.new("L", (65_500, 1)), "JPEG", quality=99)
    data = data.replace((65_500).to_bytes(2, "big"), (65_501).to_bytes(2, "big"), 1)
    assert shrunk(data, quality=50) is None


def test_noise_at_the_highest_quality_can_be_written(encode):
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    data = encode(Image.fromarray(noise), "PNG")
    for image_format in ("jpg", "webp"):
        assert shrunk(data, image_format=image_format, quality=100)[1].upright == (400, 300)


@pytest.mark.parametrize("option", [{"max_side": 9}, {"quality": 9}, {"image_format": "jpg"}])
def test_an_option_is_active(option):
    assert ShrinkOptions(**option).active
    assert not ShrinkOptions().active
