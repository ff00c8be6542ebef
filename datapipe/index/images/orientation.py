"""The orientation of an encoded image, as `ImageOps.exif_transpose` of Pillow applies it.

EXIF counts first. If it holds no orientation, the XMP packet does (`tiff:Orientation`); a PNG
without EXIF may have what ImageMagick writes instead ("Raw profile type exif"). Both are handed to
the code of Pillow, so that odd files mean the same to both.

Sources: Exif 2.32 section 4.6 (tag 0x0112), `Image.getexif` and `PngStream` of Pillow 13.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

from PIL import Image, PngImagePlugin

XMP_IN_JPEG = b"http://ns.adobe.com/xap/1.0/\0"
"""First bytes of an APP1 segment of JPEG that holds an XMP packet."""

PNG_KEYWORDS = (b"XML:com.adobe.xmp", b"Raw profile type exif", b"exif", b"xmp")
"""Keywords of the text chunks of PNG that `exif_transpose` looks at."""

_TAG = 0x0112


def orientation_of(info: Mapping[Any, Any]) -> int:
    """Return the orientation, 1 to 8, by the `info` that Pillow has of an image.

    `exif` in it is an EXIF block with the prefix that JPEG has, `xmp` an XMP packet.
    """
    image = Image.Image()
    image.info = dict(info)
    try:
        value = image.getexif().get(_TAG, 1)
        return int(value) if value in range(1, 9) else 1
    except Exception:
        # Pillow raises many kinds of exceptions on damaged EXIF, which is no reason to refuse it.
        return 1


def orientation_of_png(data: bytes | memoryview, chunks: Iterable[tuple[bytes, int, int]]) -> int:
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
    return orientation_of(stream.im_info)
