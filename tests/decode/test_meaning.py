"""DALI and the CPU kernels mean the same: every kind of file shows one image, or fails.

What DALI gets for that, which JPEGs and what of them, is asked at the end.
"""

import contextlib

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given
from hypothesis import strategies as st

from datapipe.decode.dali.decoder import DaliDecoder
from datapipe.decode.dali.graph import installed
from datapipe.decode.dali.jpeg import plain_jpeg
from datapipe.decode.dali.options import DaliOptions
from datapipe.decode.image import decode_rgb
from datapipe.decode.spec import ImageSpec
from datapipe.errors import DecodeError, PlanError
from datapipe.index.images.header import probe

from ..campaigns import rare
from .fitted import by_kernels, photo
from .image_kinds import LOSSLESS, exif, kinds, with_segments

MOST = 1.5  # grey levels, on the average of an image
PHOTOS = ("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "rocket.jpg")


ON_GPU = [
    pytest.param(DaliOptions(hw_decoder_load=load), marks=pytest.mark.gpu, id=f"gpu, load {load}")
    for load in (0.0, 1.0)
]


def make_decoder(spec, options, batch_size):
    if not installed():
        pytest.skip("DALI is not installed")
    device = None if options is None else torch.device("cuda", 0)
    return DaliDecoder(spec, device=device, batch_size=batch_size, threads=1, options=options)


@pytest.fixture(scope="module", params=[pytest.param(None, id="cpu"), *ON_GPU])
def both(request):
    """(pixels or reason) of an image by DALI and by the CPU kernels, for the spec given."""
    made = {}

    def run(data, **options):
        spec = ImageSpec(**{"size": (40, 56), **options})
        if spec not in made:
            made[spec] = make_decoder(spec, request.param, 4)
        pixels, errors = made[spec].decode([data])
        by_dali = errors[0].reason if errors else pixels[0].cpu()
        try:
            return by_dali, by_kernels(data, spec)
        except DecodeError as error:
            return by_dali, error.reason

    yield run
    for decoder in made.values():
        decoder.close()


def assert_same(by_dali, by_kernels, most=MOST):
    if isinstance(by_kernels, str):
        assert by_dali == by_kernels
    else:
        assert isinstance(by_dali, torch.Tensor), by_dali
        assert (by_dali.float() - by_kernels.float()).abs().mean() <= most


@pytest.mark.parametrize("options", [pytest.param(None, id="cpu"), *ON_GPU])
def test_a_batch_of_every_kind_means_the_same_to_both_decoders(encode, crop, options):
    # A GPU's own decoder takes images of a batch that are alike, and leaves small batches alone.
    made = kinds(encode, crop) | {"lossless JPEG": LOSSLESS}
    spec = ImageSpec(size=(40, 56))
    decoder = make_decoder(spec, options, 64)
    pixels, errors = decoder.decode(list(made.values()))
    for row, (name, data) in enumerate(made.items()):
        if row in errors:
            with pytest.raises(DecodeError) as caught:
                by_kernels(data, spec)
            assert errors[row].reason == caught.value.reason, name
            assert not pixels[row].any(), name
            continue
        far = (pixels[row].cpu().float() - by_kernels(data, spec).float()).abs()
        assert far.mean() <= MOST, name
        assert far.quantile(0.99) <= 12, name
    decoder.close()


@pytest.mark.parametrize("resize", ["stretch", "pad", "crop"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shift", [0, rare(1), rare(2)])
def test_photographs_are_within_a_grey_level_and_a_half(both, resize, interpolation, shift):
    options = {"size": 224, "resize": resize, "interpolation": interpolation}
    for number, name in enumerate(PHOTOS):
        quality = (30, 60, 80, 92, 100)[number]
        sampling = ("444", "422", "420")[(number + shift) % 3]
        pixels = np.array(photo(name))
        data = simplejpeg.encode_jpeg(pixels, quality=quality, colorsubsampling=sampling)
        by_dali, by_kernels = both(data, **options)
        assert_same(by_dali, by_kernels)
        other = "bicubic" if interpolation == "bilinear" else "bilinear"
        by_other, _ = both(data, **options | {"interpolation": other})
        apart = (by_other.float() - by_kernels.float()).abs().mean()
        assert (by_dali.float() - by_kernels.float()).abs().mean() < apart / 2


@pytest.mark.parametrize("resize", ["stretch", "pad", "crop"])
@pytest.mark.parametrize(
    ("width", "height"), [(1, 1), (1, 700), (700, 1), (3, 400), (56, 40), (9, 9)]
)
def test_images_of_any_shape_are_fitted_alike(both, encode, crop, resize, width, height):
    data = encode(crop("coffee.png", (96, 80), 0).resize((width, height)), quality=95)
    assert_same(*both(data, resize=resize))


def seen(data):
    return plain_jpeg(data, probe(data))


def test_what_holds_nothing_to_misunderstand_is_not_copied(encode, crop):
    for data in (encode(), encode(progressive=True), encode(crop().convert("L"))):
        assert seen(data) is data


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_that_counts_is_the_only_one_left(encode, orientation):
    xmp = b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="%d"/>'
    other = orientation % 8 + 1
    for segments in ((exif(orientation), exif(other), xmp % other), (xmp % orientation,)):
        data = with_segments(encode(), *segments)
        shown = seen(data)
        assert shown.count(b"Exif") == (orientation > 1)
        assert b"adobe" not in shown
        assert probe(shown) == probe(data)
        assert probe(shown).orientation == orientation
        assert (decode_rgb(shown) == decode_rgb(data)).all()


def test_what_pixels_do_not_depend_on_is_left_out(encode):
    data = encode(icc_profile=bytes(3000), comment=b"taken by nobody", exif=exif(1))
    assert seen(data) == encode()


def test_what_decoders_read_in_several_ways_is_left_to_the_cpu(encode, crop):
    made = kinds(encode, crop)
    for name in (
        *("stored as RGB", "CMYK", "without Huffman tables", "whose Adobe segment says RGB"),
        *("of extended sequential frame", "with bytes between segments"),
    ):
        assert seen(made[f"JPEG {name}"]) is None, name
    assert seen(LOSSLESS) is None


@given(st.data())
def test_what_was_cut_off_never_gets_to_dali(encode, data):
    whole = encode(progressive=data.draw(st.booleans()))
    if data.draw(st.booleans()):
        whole = with_segments(whole, b"Exif\0\0" + whole)  # the thumbnail has an end
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with contextlib.suppress(DecodeError):
        assert seen(cut) is None


@given(st.binary(max_size=60), st.integers(0, 700))
def test_any_bytes_can_be_asked_about(encode, junk, position):
    data = encode()
    damaged = data[:position] + junk + data[position + len(junk) :]
    try:
        shown = seen(damaged)
    except DecodeError:
        return
    assert shown is None or probe(shown) == probe(damaged)


@pytest.mark.parametrize("resize", ["shortest", "dynamic", "native", "tiles"])
def test_images_of_several_sizes_are_not_in_the_graph(resize):
    with pytest.raises(PlanError, match="use decoder='cpu'"):
        DaliDecoder(ImageSpec(resize=resize), batch_size=1, threads=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_said_before_anything_is_decoded():
    with pytest.raises(PlanError, match="needs a GPU, and torch sees none"):
        DaliDecoder(ImageSpec(), device=torch.device("cuda", 0), batch_size=1, threads=1)
