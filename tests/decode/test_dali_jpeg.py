"""What DALI gets: which JPEGs and what of them, and which options it does not take."""

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.decode.dali.decoder import DaliDecoder
from datapipe.decode.dali.jpeg import plain_jpeg
from datapipe.decode.image import decode_rgb
from datapipe.decode.spec import ImageSpec
from datapipe.errors import DecodeError, PlanError
from datapipe.index.images.header import probe

from .image_kinds import exif, with_segments, without


def seen(data):
    return plain_jpeg(data, probe(data))


def test_what_holds_nothing_to_misunderstand_is_not_copied(encode, crop):
    for data in (encode(), encode(progressive=True), encode(crop().convert("L"))):
        assert seen(data) is data


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_that_counts_is_the_only_one_left(encode, orientation):
    other = orientation % 8 + 1
    data = with_segments(encode(), exif(orientation), exif(other), b"http://ns.adobe.com/xap/1.0/")
    shown = seen(data)
    assert shown.count(b"Exif") == (orientation > 1)
    assert b"adobe.com" not in shown
    assert probe(shown) == probe(data)
    assert (decode_rgb(shown) == decode_rgb(data)).all()


def test_what_pixels_do_not_depend_on_is_left_out(encode):
    data = encode(icc_profile=bytes(3000), comment=b"taken by nobody", exif=exif(1))
    assert seen(data) == encode()


@pytest.mark.parametrize(
    "kind", ["stored as RGB", "CMYK", "no tables", "extended", "gap", "lossless", "says RGB"]
)
def test_what_decoders_read_in_several_ways_is_left_to_the_cpu(encode, crop, lossless_jpeg, kind):
    data = encode()
    made = {
        "stored as RGB": encode(keep_rgb=True),
        "CMYK": encode(crop().convert("CMYK")),
        "no tables": without(data, 0xC4, 4),
        "extended": data.replace(b"\xff\xc0", b"\xff\xc1"),
        "gap": data.replace(b"\xff\xdb", b"\0\xff\xdb", 1),
        "lossless": lossless_jpeg,
        "says RGB": with_segments(data, b"Adobe\0\x64\0\0\0\0\0", marker=0xEE),
    }[kind]
    assert seen(made) is None


@settings(deadline=None)
@given(st.data())
def test_what_was_cut_off_never_gets_to_dali(encode, data):
    whole = encode(progressive=data.draw(st.booleans()))
    if data.draw(st.booleans()):
        whole = with_segments(whole, b"Exif\0\0" + whole)  # the thumbnail has an end
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with contextlib.suppress(DecodeError):
        assert seen(cut) is None


@settings(deadline=None)
@given(st.binary(max_size=60), st.integers(0, 700))
def test_any_bytes_can_be_asked_about(encode, junk, position):
    data = encode()
    damaged = data[:position] + junk + data[position + len(junk) :]
    try:
        shown = seen(damaged)
    except DecodeError:
        return
    assert shown is None or probe(shown) == probe(damaged)


SPEC = ImageSpec(size=(24, 32))


@pytest.mark.parametrize("resize", ["shortest", "dynamic", "native", "tiles"])
def test_images_of_several_sizes_are_not_in_the_graph(resize):
    with pytest.raises(PlanError, match="use decoder='cpu'"):
        DaliDecoder(ImageSpec(resize=resize), batch_size=1, threads=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_said_before_anything_is_decoded():
    with pytest.raises(PlanError, match="needs a GPU, and torch sees none"):
        DaliDecoder(SPEC, device=torch.device("cuda", 0), batch_size=1, threads=1)
