"""Headers of encoded images: format, size, orientation.

JPEG and PNG headers are parsed here, since millions of them are read while packing; every other
format goes through Pillow, which reads headers without decoding.

Sources: ITU-T T.81 annex B (JPEG markers), PNG third edition section 11 (chunks). What orientation
means is in `orientation.py`.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from PIL import Image

from datapipe.errors import DecodeError
from datapipe.index.images.formats import PACKED
from datapipe.index.images.orientation import (
    PNG_KEYWORDS,
    XMP_IN_JPEG,
    orientation,
    orientation_of_info,
    orientation_of_png,
)

FORMATS = {
    "JPEG": "jpg",
    "MPO": "jpg",
    "PNG": "png",
    "WEBP": "webp",
    "GIF": "gif",
    "BMP": "bmp",
    "TIFF": "tif",
    "PPM": "ppm",
    "AVIF": "avif",
    "JPEG2000": "jp2",
}
"""Pillow's format names and the file extension each gets in a shard.

Only these are opened: Pillow would also start Ghostscript for an EPS.
"""

EXTENSIONS = frozenset(FORMATS.values()) | {
    *("jpeg", "jpe", "jfif", "tiff", "pgm", "pbm", "pnm", "j2k", "dib")
}
"""Lower-case extensions that name an image in a shard."""

Image.init()  # Pillow loads plugins on first need, and needs them loaded to be told of formats
OPENED = tuple(name for name in FORMATS if name in Image.OPEN)
"""Those of `FORMATS` that this Pillow was built with."""

# Frame headers; DHT (C4), JPG (C8) and DAC (CC) share their range without being frames.
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCALABLE = frozenset({0xC0, 0xC1, 0xC2})  # baseline, extended sequential, progressive
_STANDALONE = frozenset({0x00, 0x01, *range(0xD0, 0xD8)})
_APP1, _SCAN, _END = 0xE1, 0xDA, 0xD9
_PNG_TEXTS = frozenset({b"tEXt", b"zTXt", b"iTXt"})
_MISTAKEN = (
    ((b"<!doctype html", b"<html"), "it is an HTML page"),
    ((b"<?xml", b"<svg"), "it is XML or SVG"),
    ((b"{", b"["), "it looks like JSON"),
    (
        b"version https://git-lfs.",
        "it is a Git LFS pointer; fetch the file itself with `git lfs pull`",
    ),
)
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
"""First bytes of a PNG."""


class NeedMoreData(Exception):
    """The given prefix ends before the header does."""


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """Header facts of one image."""

    format: str  # extension by content: "jpg", "png", "webp", ...
    # `width`, `height`: pixels as stored, before orientation
    width: int
    height: int
    # 1 to 8, as EXIF numbers them, from EXIF or XMP; 1 where none is given. A TIFF always has 1,
    # and the sides of the upright image, since Pillow turns it while loading.
    orientation: int = 1
    components: int = 0  # colour components of a JPEG (1, 3 or 4), 0 for other formats
    # Whether libjpeg can scale it down while decoding: a Huffman-coded DCT JPEG of 8 bits. Asked to
    # scale a lossless JPEG, libjpeg-turbo 3.1 writes past its output.
    scalable: bool = False

    @property
    def upright(self) -> tuple[int, int]:
        """Width and height in pixels once the orientation is applied."""
        if self.orientation >= 5:
            return self.height, self.width
        return self.width, self.height


def is_image_extension(ext: str) -> bool:
    """Return whether an extension such as `jpg`, `1.jpg` or `left.HEIC` names a raw image.

    Packing may re-encode raw images; see `is_stored_image` for those in shards.
    """
    ext = ext.rpartition(".")[2].lower()
    return ext in EXTENSIONS or ext in PACKED


def is_image_name(name: str) -> bool:
    """Return whether the name of a file is that of a raw image.

    Examples:
        >>> is_image_name("0001.HEIC"), is_image_name("jpg")
        (True, False)
    """
    stem, _, ext = name.rpartition(".")
    return bool(stem) and is_image_extension(ext)


def is_stored_image(ext: str) -> bool:
    """Return whether the extension of a shard's member names an image, which loaders decode."""
    return ext.rpartition(".")[2].lower() in EXTENSIONS


def probe(data: bytes | memoryview, *, complete: bool = True) -> ImageInfo:
    """Read the header of an encoded image or, with `complete=False`, of its first bytes.

    Raises `DecodeError` if it is not a known image, `NeedMoreData` if it continues after `data`.
    """
    if data[:2] == b"\xff\xd8":
        try:
            return _probe_jpeg(data, complete=complete)
        except (IndexError, struct.error):
            if complete:
                raise DecodeError("JPEG ends before its frame header") from None
            raise NeedMoreData from None
    if not complete:
        # Other formats may keep their EXIF behind the pixels.
        raise NeedMoreData
    if data[:8] == PNG_MAGIC:
        return _probe_png(data)
    return _probe_other(data)


def _probe_jpeg(data: bytes | memoryview, *, complete: bool) -> ImageInfo:
    position, frame = 2, 0
    segments: list[tuple[int, int]] = []  # that may hold metadata
    try:
        while (marker := data[position + 1]) not in (_END, _SCAN) or data[position] != 0xFF:
            if data[position] != 0xFF:
                # Stray bytes between segments: libjpeg passes over them with a warning.
                data = bytes(data)  # a view has no `find`; bytes stay what they are
                if (position := data.find(b"\xff", position)) < 0:
                    raise IndexError
            elif marker == 0xFF:  # fill byte
                position += 1
            elif marker in _STANDALONE:
                position += 2
            else:
                (length,) = struct.unpack_from(">H", data, position + 2)
                if length < 2 and not frame:
                    raise DecodeError(f"JPEG segment of length {length} at byte {position}")
                if marker in _SOF and not frame:
                    frame = position
                if marker == _APP1:
                    segments.append((position + 4, position + 2 + length))
                position += 2 + length
    except (IndexError, struct.error):
        if not (frame and complete):
            raise
    if not frame:
        raise DecodeError("JPEG has no frame header")
    height, width = struct.unpack_from(">HH", data, frame + 5)
    if not width or not height:
        raise DecodeError(f"JPEG header gives {width}x{height} pixels")
    scalable = data[frame + 1] in _SCALABLE and data[frame + 4] == 8
    turned = _turned(data, segments) if segments else 1
    return ImageInfo("jpg", width, height, turned, data[frame + 9], scalable)


def _turned(data: bytes | memoryview, segments: Iterable[tuple[int, int]]) -> int:
    """Return the orientation that the APP1 segments of a JPEG amount to."""
    exif: bytes | None = None
    xmp = None
    for start, end in segments:
        if data[start : start + 6] == b"Exif\0\0":
            # Several segments are one block to Pillow.
            exif = bytes(data[start:end]) if exif is None else exif + data[start + 6 : end]
        elif data[start : start + len(XMP_IN_JPEG)] == XMP_IN_JPEG:
            xmp = data[start + len(XMP_IN_JPEG) : end]
    return 1 if exif is None and xmp is None else orientation(exif, xmp)


def _probe_png(data: bytes | memoryview) -> ImageInfo:
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise DecodeError("PNG has no IHDR chunk")
    width, height = struct.unpack_from(">II", data, 16)
    if not width or not height:
        raise DecodeError(f"PNG header gives {width}x{height} pixels")
    chunks = _png_metadata(data)
    if not chunks:
        return ImageInfo("png", width, height)
    if any(kind != b"eXIf" for kind, _, _ in chunks):
        return ImageInfo("png", width, height, orientation_of_png(data, chunks))
    _, start, length = chunks[-1]
    return ImageInfo("png", width, height, orientation(b"Exif\0\0" + data[start : start + length]))


def _png_metadata(data: bytes | memoryview) -> list[tuple[bytes, int, int]]:
    """Return (type, start, length) of the chunks that may hold an orientation.

    Those behind the first frame of an animation are left out, as Pillow does not read so far.
    """
    found = []
    position, size = 8, len(data)
    frames, framed, pixels = 0, False, False
    while position + 8 <= size:
        length, kind = struct.unpack_from(">I4s", data, position)
        start = position + 8
        position = start + length + 4
        if kind == b"IDAT":
            pixels = True
        elif kind == b"eXIf":
            found.append((kind, start, length))
        elif kind in _PNG_TEXTS:
            if bytes(data[start : start + 32]).startswith(PNG_KEYWORDS):
                found.append((kind, start, length))
        elif kind == b"IEND":
            break
        elif kind == b"acTL" and length >= 8:
            (stated,) = struct.unpack_from(">I", data, start)
            frames = 0 if frames or stated > 1 << 31 else stated
        elif kind == b"fcTL":
            if pixels and (frames > 1 or (frames and not framed)):
                break
            framed = framed or not pixels
    return found


def _probe_other(data: bytes | memoryview) -> ImageInfo:
    if not data:
        raise DecodeError("file is empty")
    try:
        with Image.open(io.BytesIO(data), formats=OPENED) as image:
            width, height = image.size
            turned = orientation_of_info(image.info)
            if image.format == "TIFF":
                # Pillow turns a TIFF while it loads it. Before that it has swapped the sides for
                # the TIFF's own tag, for that of XMP it has not.
                if turned >= 5 and 0x0112 not in image.tag_v2:  # type: ignore[attr-defined]
                    width, height = height, width
                turned = 1
            return ImageInfo(FORMATS[image.format or ""], width, height, turned)
    except Image.DecompressionBombError as error:
        raise DecodeError(f"too many pixels: {error}") from error
    except Exception as error:
        # Pillow's plugins raise many kinds of exceptions on hostile bytes.
        raise DecodeError(f"not an image of a known format ({_looks_like(data)})") from error


def _looks_like(data: bytes | memoryview) -> str:
    data = bytes(data[:256])
    head = data.lstrip().lower()
    for marks, words in _MISTAKEN:
        if head.startswith(marks):
            return words
    if data[4:12] in (b"ftypavif", b"ftypavis") and "AVIF" not in OPENED:
        return "it is AVIF, which this Pillow was not built to read; pip install --upgrade pillow"
    if not data.strip(b"\0"):
        return "it begins with zero bytes"
    return f"it begins with {data[:8]!r}"
