"""The orientation of an image is the one that Pillow's `exif_transpose` applies."""

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features

from datapipe import ImageSpec, make_loader, pack_dataset
from datapipe.decode.image import decode_rgb
from datapipe.index.images.header import NeedMoreData, probe

from .image_kinds import assert_as_pillow, exif, shown, with_segments

XMP = "http://ns.adobe.com/xap/1.0/\0"
ODD_HEADERS = (b"MM*\0", b"II\0*", b"MM\0+", b"II+\0", b"IIII")
LAYOUTS = ('<x tiff:Orientation="%d"/>', "<tiff:Orientation>%d</tiff:Orientation>")


def packet(orientation, layout=LAYOUTS[0]):
    return (layout % orientation).encode()


def xmp_segment(orientation):
    return XMP.encode() + packet(orientation)


def chunk(kind, content):
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def raw_profile(block, name="exif"):
    """What ImageMagick writes into a text chunk."""
    return f"\n{name}\n{len(block):8}\n{block.hex()}\n".encode()


def with_chunk(data, made, *, behind=False):
    """A PNG with a chunk put before its pixels, or behind them."""
    at = data.rindex(b"IEND") - 4 if behind else 33
    return data[:at] + made + data[at:]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_orientation_of_an_xmp_packet_is_applied(encode, kind, orientation, layout):
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    made = packet(orientation, layout)
    if kind == "PNG":
        data = with_chunk(encode(kind=kind), chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + made))
    elif kind == "TIFF":
        data = encode(kind=kind, tiffinfo={700: made})
    else:
        data = encode(kind=kind, xmp=made)
    assert_as_pillow(data)
    assert (probe(data).upright == (32, 48)) == (orientation in (5, 6, 7, 8))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "1", "I;16"])
@pytest.mark.parametrize("compression", ["raw", "tiff_lzw"])
def test_tiffs_of_every_mode_are_turned_once(encode, crop, mode, compression):
    image = crop().convert("L").convert("I").convert("I;16") if mode == "I;16" else crop()
    image = image.convert("L").convert("LA") if mode == "LA" else image.convert(mode)
    data = encode(image, "TIFF", tiffinfo={700: packet(6)}, compression=compression)
    assert decode_rgb(data).shape == (48, 32, 3)
    assert probe(data).upright == (32, 48)


@pytest.mark.parametrize("first", range(1, 9))
def test_exif_counts_before_xmp(encode, first):
    for data in (
        with_segments(encode(), exif(first), xmp_segment(6)),
        with_segments(encode(), xmp_segment(6), exif(first)),
        encode(kind="WEBP", exif=exif(first), xmp=packet(6)),
        encode(kind="TIFF", tiffinfo={0x0112: first, 700: packet(6)}),
    ):
        assert_as_pillow(data)


def test_one_of_several_metadata_counts(encode):
    png = encode(kind="PNG")
    frames = encode(kind="PNG", save_all=True, append_images=[Image.new("RGB", (48, 32))])
    six, three = (chunk(b"eXIf", exif(orientation)[6:]) for orientation in (6, 3))
    maker = Image.Exif()  # without an orientation
    maker[0x010F] = "a maker"
    profiles = (  # of ImageMagick, which Pillow leaves alone
        chunk(b"tEXt", f"Raw profile type {name}\0".encode() + raw_profile(content, name))
        for name, content in (("APP1", exif(6)), ("xmp", packet(6)))
    )
    for data, orientation in (
        *((encode(kind=kind, exif=maker, xmp=packet(8)), 8) for kind in ("JPEG", "WEBP")),
        (with_segments(encode(), xmp_segment(6), xmp_segment(3)), 3),  # the last packet
        (with_chunk(with_chunk(png, six, behind=True), three, behind=True), 3),  # the last chunk
        (with_chunk(frames, six, behind=True), 1),  # of a later frame
        *((with_chunk(png, made), 1) for made in profiles),
    ):
        assert_as_pillow(data)
        assert probe(data).orientation == orientation


@pytest.mark.parametrize("mark", [b"\xff\xdb", b"\xff\xc4", b"\xff\xda"])
def test_metadata_count_wherever_they_are_and_a_prefix_says_the_same_or_asks_for_more(encode, mark):
    large = Image.Exif()
    large[0x010F] = "m" * 3000  # an entry before the orientation
    large[0x0112] = 6
    for content in (exif(6), xmp_segment(6), large.tobytes()):
        plain = encode()
        at = plain.index(mark)
        segment = struct.pack(">BBH", 255, 0xE1, len(content) + 2) + content
        data = plain[:at] + segment + plain[at:]
        assert_as_pillow(data)
        assert probe(data).orientation == 6
        answers = []
        for length in range(0, len(data), 3):
            try:
                answers.append(probe(data[:length], complete=False))
            except NeedMoreData:
                answers.append(None)
        assert set(answers) == {None, probe(data)}
        assert answers == sorted(answers, key=lambda answer: answer is not None)


@pytest.mark.parametrize("kind", [b"tEXt", b"zTXt"])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_raw_profile_of_imagemagick_is_applied(encode, kind, behind, orientation):
    text = raw_profile(exif(orientation))
    text = b"\0" + zlib.compress(text) if kind == b"zTXt" else text
    made = chunk(kind, b"Raw profile type exif\0" + text)
    data = with_chunk(encode(kind="PNG"), made, behind=behind)
    assert_as_pillow(data)
    assert probe(data).orientation == orientation


@st.composite
def blocks(draw):
    """EXIF as cameras write it, and as nobody should."""
    order = draw(st.sampled_from("<>"))
    tags = draw(st.lists(st.sampled_from([0x010F, 0x011A, 0x0132, 0x8769, 0x0112]), max_size=5))
    entries, values = b"", b""
    for tag in tags:
        value = draw(st.integers(0, 9))
        if tag == 0x0112:
            kind, number = draw(st.sampled_from([(3, 1)] * 4 + [(4, 1), (1, 1), (3, 2), (9, 1)]))
            wide = kind in (4, 9)
            held = struct.pack(order + ("I" if wide else "HH"), *([value] if wide else [value, 6]))
            entries += struct.pack(order + "HHI", tag, kind, number) + held
            continue
        size = draw(st.sampled_from([3, 4, 10, 20, 300]))
        place = 14 + 12 * len(tags) + len(values) + draw(st.sampled_from([0, 0, 0, 5, 10**9]))
        entries += struct.pack(order + "HHII", tag, 2, size, place)
        values += bytes(20)
    head = b"II*\0" if order == "<" else b"MM\0*"
    if draw(st.integers(0, 9)) == 0:
        head = draw(st.sampled_from(ODD_HEADERS))
    number = len(tags) + draw(st.sampled_from([0, 0, 0, 0, 3]))
    block = head + struct.pack(order + "IH", 8, number) + entries + bytes(4) + values
    if draw(st.integers(0, 4)) == 0:
        block = block[: draw(st.integers(0, len(block)))]
    return b"Exif\0\0" * draw(st.sampled_from([0, 1, 1, 1, 2])) + block


@pytest.mark.campaign
@settings(max_examples=300)
@given(st.lists(blocks(), min_size=1, max_size=2), st.integers(0, 9), st.booleans())
def test_odd_metadata_means_what_it_means_to_pillow(encode, made, orientation, has_xmp):
    packets = [xmp_segment(orientation)] if has_xmp else []
    png = encode(kind="PNG")
    for block in made:
        png = with_chunk(png, chunk(b"eXIf", block))
    options = {"xmp": packet(orientation)} if has_xmp else {}
    for data in (
        with_segments(encode(), *(b"Exif\0\0" + block for block in made), *packets),
        png,
        encode(kind="WEBP", exif=made[0], **options),
    ):
        if shown(data) is not None:
            assert_as_pillow(data)
        else:
            assert decode_rgb(data).shape in ((32, 48, 3), (48, 32, 3))


def test_a_pack_and_foreign_tars_show_what_pillow_shows(tmp_path, encode, make_tar):
    profile = chunk(b"tEXt", b"Raw profile type exif\0" + raw_profile(exif(8)))
    images = {
        "jpg": with_segments(encode(), xmp_segment(6)),
        "png": with_chunk(encode(kind="PNG"), profile),
        "webp": encode(kind="WEBP", lossless=True, xmp=packet(5)),
        "tif": encode(kind="TIFF", tiffinfo={700: packet(7)}),
    }
    make_tar(tmp_path / "tars" / "a.tar", [(f"{ext}.{ext}", data) for ext, data in images.items()])
    pack_dataset(tmp_path / "tars", tmp_path / "packed")
    image = ImageSpec(resize="native", normalize=None, patch=8, merge=1, temporal=1)
    for folder in ("tars", "packed"):
        (batch,) = make_loader(tmp_path / folder, batch_size=4, image=image, num_workers=0)
        assert batch["image_grid_thw"].tolist() == [[1, 9, 6]] * 4
