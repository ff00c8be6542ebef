"""The orientation of an encoded image, as `ImageOps.exif_transpose` of Pillow applies it.

EXIF counts first. If it holds no orientation, the XMP packet does (`tiff:Orientation`); a PNG
without EXIF may have what ImageMagick writes instead ("Raw profile type exif"). Ordinary EXIF is
read here, since packing reads millions of headers. The rest (other types, XMP) is handed to the
code of Pillow, so that odd files mean the same to both.

Sources: Exif 2.32 section 4.6 (tag 0x0112), `Image.getexif` and `PngStream` of Pillow 13.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from PIL import Image, PngImagePlugin

Data = bytes | memoryview

XMP_IN_JPEG = b"http://ns.adobe.com/xap/1.0/\0"
"""First bytes of an APP1 segment of JPEG that holds an XMP packet."""

PNG_KEYWORDS = (b"XML:com.adobe.xmp", b"Raw profile type exif", b"exif", b"xmp")
"""Keywords of the text chunks of PNG that `exif_transpose` looks at."""

_TAG, _SHORT = 0x0112, 3
_XMP_TAG = b"tiff:Orientation"
_PREFIX = b"Exif\0\0"
# Bytes of a value of each type: TIFF 6.0, section 2, and the IFD of its supplement 1.
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
_ORDERS = {
    b"II*\0": (struct.Struct("<I"), struct.Struct("<H"), struct.Struct("<HHII")),
    b"MM\0*": (struct.Struct(">I"), struct.Struct(">H"), struct.Struct(">HHII")),
}


def orientation(exif: Data | None, xmp: Data | None = None) -> int:
    """Return the orientation, 1 to 8, that an EXIF block and an XMP packet amount to.

    The block is the TIFF structure, with or without the prefix that JPEG has.
    """
    info: dict[str, bytes] = {}
    if exif is not None:
        found = _ordinary(bytes(exif).removeprefix(_PREFIX))
        if found:
            return found
        if found is None:
            info["exif"] = bytes(exif)
    if xmp is not None and _XMP_TAG in (packet := bytes(xmp)):
        info["xmp"] = packet
    return _ask_pillow(info) if info else 1


def orientation_of_info(info: Mapping[Any, Any]) -> int:
    """Return the orientation, 1 to 8, from the `info` that Pillow has of an image."""
    exif, xmp = info.get("exif"), info.get("xmp")
    if isinstance(exif, bytes | None) and isinstance(xmp, bytes | None):
        return orientation(exif, xmp)
    return _ask_pillow(info)


def orientation_of_png(data: Data, chunks: Iterable[tuple[bytes, int, int]]) -> int:
    """Return the orientation, 1 to 8, that chunks of a PNG amount to.

    `chunks` are (type, first byte of the content, length) of each eXIf chunk, and of each text
    chunk whose keyword is one of `PNG_KEYWORDS`.
    """
    try:
        file = io.BytesIO(data)
        stream = PngImagePlugin.PngStream(file)
        for kind, start, length in chunks:
            file.seek(start)
            getattr(stream, f"chunk_{kind.decode('ascii')}")(start, length)
    except Exception:
        return 1  # Pillow refuses to read on, and the check of the image says so
    return _ask_pillow(stream.im_info)


def _ordinary(tiff: bytes) -> int | None:
    """Return the orientation in an EXIF block, 0 where it holds none, None where Pillow must say.

    As Pillow does, entries after one whose value is outside the block are not read.
    """
    structs = _ORDERS.get(tiff[:4])
    if structs is None or len(tiff) < 8:
        return None
    offset, count, entry = structs
    limit = left = len(tiff)
    start = offset.unpack_from(tiff, 4)[0] + 2
    if start > limit:
        return 0
    last = -1
    entries = min(count.unpack_from(tiff, start - 2)[0], (limit - start) // 12)
    for tag, kind, number, value in entry.iter_unpack(tiff[start : start + 12 * entries]):
        if tag == _TAG:
            if kind != _SHORT or number != 1:
                return None
            value = value & 0xFFFF if tiff[0] == 0x49 else value >> 16
            return value if 1 <= value <= 8 else 1
        if tag <= last:
            return None  # of repeated tags Pillow takes the first; in order, there are none
        last = tag
        size = number * _SIZES.get(kind, 0)
        if size > 4:
            left -= size
            if left >= 0 and value + size > limit:
                return 0
    return 0


def _ask_pillow(info: Mapping[Any, Any]) -> int:
    """Return the orientation that Pillow reports for an image."""
    image = Image.Image()
    image.info = dict(info)
    try:
        value = image.getexif().get(_TAG, 1)
        return int(value) if value in range(1, 9) else 1
    except Exception:
        # Pillow raises many kinds of exceptions on damaged EXIF, which is no reason to refuse it.
        return 1
