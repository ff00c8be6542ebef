"""A file of every kind of image that means something of its own."""

import io
import struct
import warnings

import numpy as np
import simplejpeg
from PIL import Image, ImageOps

from datapipe.decode.image import decode_for, decode_rgb
from datapipe.index.images.header import probe

LOSSLESS = bytes.fromhex(
    "ffd8ffee000e41646f626500640000000000ffc3001108004000400352110047110042"
    "1100ffc400160001010100000000000000000000000000000705ffda000c0352004700"
    "4200010000a461cc40"
)
LOSSLESS = LOSSLESS.ljust(1613, b"\0") + b"\x01\xff\xd9"
"""64x64 pixels of (200, 100, 50) as lossless JPEG (T.81 annex H): all differences are zero."""


def shown(data):
    """The pixels that Pillow shows; None where it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data)) as image:
                image.seek(0)
                return np.asarray(ImageOps.exif_transpose(image).convert("RGB")).astype(int)
        except Exception:
            return None


def assert_as_pillow(data):
    expected = shown(data)
    assert expected is not None
    height, width, _ = expected.shape
    info = probe(data)
    assert info.upright == (width, height)
    pixels = decode_rgb(data)
    assert (pixels.dtype, pixels.shape) == (np.uint8, expected.shape)
    assert pixels.flags.c_contiguous
    by_libjpeg = data[:2] == b"\xff\xd8" and info.components in (1, 3)
    assert np.abs(pixels - expected).max() <= (2 if by_libjpeg else 0)
    decoded = decode_for(data)
    assert (decoded.width, decoded.height) == (width, height)
    assert (decoded.pixels == pixels).all()


def exif(orientation, kind=3):
    """An EXIF block, by default of the type that the standard asks for."""
    value = struct.pack(">HH", orientation, 0) if kind == 3 else struct.pack(">I", orientation)
    head = struct.pack(">2sHIHHHI", b"MM", 42, 8, 1, 0x0112, kind, 1)
    return b"Exif\0\0" + head + value + bytes(4)


def with_segments(data, *contents, marker=0xE1):
    """A JPEG with segments put behind its first."""
    end = 4 + int.from_bytes(data[4:6], "big")
    made = [struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content for content in contents]
    return data[:end] + b"".join(made) + data[end:]


def without(data, marker, times=1):
    """A JPEG without its first segments of a kind."""
    for _ in range(times):
        start = data.index(bytes([0xFF, marker]))
        end = start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")
        data = data[:start] + data[end:]
    return data


def changed(data, offset, value):
    return data[:offset] + bytes([value]) + data[offset + 1 :]


def kinds(encode, crop):
    """A file of every kind that means something of its own."""
    image = crop("coffee.png", (96, 80), 0)
    grey, plain, rgb = image.convert("L"), encode(image), encode(image, keep_rgb=True)
    adobe = b"Adobe\0\x64\0\0\0\0"
    alpha = image.copy()
    alpha.putalpha(grey)
    soft = grey.copy()
    soft.putalpha(grey.transpose(Image.Transpose.ROTATE_180))
    clear = image.quantize(16)
    lossless = {"lossless": True}
    moving = {"save_all": True, "append_images": [Image.new("RGB", image.size)], "duration": 50}
    scan = plain.index(b"\xff\xda") + 2
    deep = Image.fromarray((np.asarray(grey).astype(np.uint16) << 8) + 77)
    made = {
        "JPEG grey": encode(grey),
        "JPEG grey, 2x2 samples": changed(encode(grey), encode(grey).index(b"\xff\xc0") + 11, 0x22),
        "JPEG progressive": encode(image, progressive=True),
        "JPEG progressive grey": encode(grey, progressive=True),
        "JPEG with restart markers": encode(image, restart_marker_blocks=3),
        "JPEG stored as RGB": rgb,
        "JPEG stored as RGB, said by component numbers": without(rgb, 0xEE),
        "JPEG without JFIF": without(plain, 0xE0),
        "JPEG whose Adobe segment says RGB": with_segments(plain, adobe + b"\0", marker=0xEE),
        "JPEG whose Adobe segment says YCbCr": with_segments(plain, adobe + b"\1", marker=0xEE),
        "JPEG CMYK": encode(image.convert("CMYK")),
        "JPEG CMYK, turned": encode(image.convert("CMYK"), exif=exif(6)),
        "JPEG of a later JFIF": changed(plain, plain.index(b"JFIF\0") + 5, 9),
        # The last coefficient, which is always 63 in baseline.
        "JPEG whose scan has no end": changed(plain, scan + plain[scan + 1] - 2, 0),
        "JPEG with a colour profile": encode(image, icc_profile=bytes(3000)),
        "JPEG with a comment": encode(image, comment=b"\xff\xd9 is not the end"),
        "JPEG of extended sequential frame": changed(plain, plain.index(b"\xff\xc0") + 1, 0xC1),
        "JPEG with arithmetic coding": changed(plain, plain.index(b"\xff\xc0") + 1, 0xC9),
        "JPEG with bytes between segments": plain.replace(b"\xff\xdb", b"\0\0\0\xff\xdb", 1),
        "JPEG with bytes before the end": plain[:-2] + bytes(5) + plain[-2:],
        "JPEG with bytes behind the end": plain + b"appended by a camera",
        "JPEG with another behind it": plain + encode(grey),
        "JPEG grey with bytes behind the end": encode(grey) + bytes(5),
        "JPEG with fill bytes": plain.replace(b"\xff\xdb", b"\xff\xff\xdb", 1),
        "JPEG with an escape between segments": plain.replace(b"\xff\xdb", b"\xff\0\xff\xdb", 1),
        "JPEG without Huffman tables": without(plain, 0xC4, 4),
        "JPEG without a Huffman table": without(plain, 0xC4),
        "JPEG without quantisation tables": without(plain, 0xDB, 2),
        "JPEG of two components": changed(plain, plain.index(b"\xff\xc0") + 9, 2),
        "JPEG without an end": plain[:-2],
        "MPO": encode(image, "MPO", save_all=True, append_images=[grey.convert("RGB")]),
        "PNG 16-bit grey": encode(deep, "PNG"),
        "PNG transparent colour": encode(image, "PNG", transparency=image.getpixel((5, 5))),
        "PNG transparent palette": encode(clear, "PNG", transparency=3),
        "PNG upside down": encode(image, "PNG", exif=exif(3)[6:]),
        "TIFF 16-bit grey": encode(deep, "TIFF"),
        "TIFF floating point": encode(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"),
        "WebP lossy": encode(image, "WEBP"),
        "WebP with alpha": encode(alpha, "WEBP", **lossless),
        "WebP turned": encode(image, "WEBP", exif=exif(6)),
        "WebP animation": encode(image, "WEBP", **moving, **lossless),
        "PNG animation": encode(image, "PNG", **moving),
        "GIF animation": encode(image, "GIF", **moving),
        "AVIF": encode(image, "AVIF") if "AVIF" in Image.SAVE else plain,
        "JPEG 2000": encode(image, "JPEG2000") if "JPEG2000" in Image.SAVE else plain,
        "nothing": b"",
        "web page": b"<!DOCTYPE html><html></html>",
        "two bytes of a JPEG": b"\xff\xd8",
        "a JPEG's header alone": plain[: plain.index(b"\xff\xda")],
    }
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
        pixels = {"LA": soft, "RGBA": alpha}.get(mode) or image.convert(mode)
        for kind in ("PNG", "TIFF", "BMP", "PPM", "GIF"):
            if (kind, mode) not in (("BMP", "LA"), ("PPM", "LA"), ("PPM", "P")):
                made[f"{kind} {mode}"] = encode(pixels, kind)
    for orientation in range(10):
        made[f"orientation {orientation}"] = with_segments(plain, exif(orientation))
        made[f"PNG orientation {orientation}"] = encode(image, "PNG", exif=exif(orientation)[6:])
        wrong = exif(orientation, kind=4)
        made[f"orientation {orientation} of a wrong type"] = with_segments(plain, wrong)
    for first, second in ((6, 3), (3, 6), (1, 6), (6, 1), (2, 8)):
        both = with_segments(plain, exif(first), exif(second))
        made[f"orientation {first}, then {second}"] = both
    xmp = b"http://ns.adobe.com/xap/1.0/\0"
    made["orientation behind other segments"] = with_segments(plain, xmp, exif(6))
    made["orientation in a cut off block"] = with_segments(plain, exif(6)[:18])
    no_tiff = b"Exif\0\0II\0\0" + exif(6)[10:]
    made["orientation in a block of no TIFF"] = with_segments(plain, no_tiff)
    far = exif(6)[:10] + b"\x7f\xff\xff\xff" + exif(6)[14:]
    made["orientation in a block whose entries lie far behind it"] = with_segments(plain, far)
    pixels = np.asarray(image)
    for sampling in ("444", "422", "420", "440", "411"):
        made[f"JPEG {sampling}"] = simplejpeg.encode_jpeg(pixels, colorsubsampling=sampling)
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "TIFF"):
        for share in (0.2, 0.6, 0.97):
            data = encode(image, kind)
            made[f"{kind} cut off at {share}"] = data[: int(len(data) * share)]
    for share in (0.3, 0.6, 0.97):
        data = encode(image, progressive=True)
        made[f"progressive JPEG cut off at {share}"] = data[: int(len(data) * share)]
        for other in (grey, image.convert("CMYK")):
            data = encode(other)
            made[f"JPEG {other.mode} cut off at {share}"] = data[: int(len(data) * share)]
        data = with_segments(plain, b"Exif\0\0" + bytes(20) + plain)
        made[f"JPEG with a thumbnail cut off at {share}"] = data[: int(len(data) * share)]
    return made
