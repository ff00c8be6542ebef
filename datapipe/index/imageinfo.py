"""What an encoded image says of itself in its header: format, size, orientation.

JPEG and PNG headers are parsed here, since millions of them are read while packing; every other
format goes through Pillow, which reads headers without decoding.

Sources: ITU-T T.81 annex B (JPEG markers), Exif 2.32 section 4.6 (orientation, tag 0x0112),
PNG third edition section 11 (IHDR, eXIf).
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass

from PIL import Image

from datapipe.errors import DecodeError

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
"""Lower-case extensions that name an image."""

Image.init()  # Pillow loads plugins on first need, and needs them loaded to be told of formats
OPENED = tuple(name for name in FORMATS if name in Image.OPEN)
"""Those of `FORMATS` that this Pillow was built with."""

# Frame headers; DHT (C4), JPG (C8) and DAC (CC) share their range without being frames.
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCALABLE = frozenset({0xC0, 0xC1, 0xC2})  # baseline, extended sequential, progressive
_STANDALONE = frozenset({0x00, 0x01, *range(0xD0, 0xD8)})
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


class NeedMoreData(Exception):
    """The given prefix ends before the header does."""


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """Header facts of one image.

    Attributes:
        format: extension by content: "jpg", "png", "webp", ...
        width, height: pixels as stored, before orientation.
        orientation: EXIF orientation 1 to 8; 1 where none is given.
        components: colour components of a JPEG (1, 3 or 4), 0 for other formats.
        scalable: whether libjpeg can scale it down while decoding: a Huffman-coded DCT JPEG of 8
            bits. Asked to scale a lossless JPEG, libjpeg-turbo 3.1 writes past its output.
    """

    format: str
    width: int
    height: int
    orientation: int = 1
    components: int = 0
    scalable: bool = False

    @property
    def upright(self) -> tuple[int, int]:
        """(width, height) in pixels once the orientation is applied."""
        if self.orientation >= 5:
            return self.height, self.width
        return self.width, self.height


def is_image_extension(ext: str) -> bool:
    """Whether a member extension such as `jpg`, `1.jpg` or `left.PNG` names an image."""
    return ext.rpartition(".")[2].lower() in EXTENSIONS


def probe(data: bytes | memoryview, *, complete: bool = True) -> ImageInfo:
    """Read the header of an encoded image.

    Args:
        data: the encoded image or, with `complete=False`, its first bytes.

    Raises:
        DecodeError: `data` is no image of a known format.
        NeedMoreData: only with `complete=False`, when the header goes on past `data`.
    """
    if data[:2] == b"\xff\xd8":
        try:
            return _probe_jpeg(data)
        except (IndexError, struct.error):
            if complete:
                raise DecodeError("JPEG ends before its frame header") from None
            raise NeedMoreData from None
    if not complete:
        # Other formats may keep their EXIF behind the pixels.
        raise NeedMoreData
    if data[:8] == _PNG_MAGIC:
        return _probe_png(data)
    return _probe_other(data)


def _probe_jpeg(data: bytes | memoryview) -> ImageInfo:
    position, orientation = 2, 1
    seen_exif = False
    while True:
        if data[position] != 0xFF:
            # Stray bytes between segments: libjpeg passes over them with a warning.
            data = bytes(data)  # a view has no `find`; bytes stay what they are
            if (position := data.find(b"\xff", position)) < 0:
                raise IndexError
            continue
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
            continue
        if marker in _STANDALONE:
            position += 2
            continue
        if marker in _SOF:
            height, width = struct.unpack_from(">HH", data, position + 5)
            if not width or not height:
                raise DecodeError(f"JPEG header gives {width}x{height} pixels")
            scalable = marker in _SCALABLE and data[position + 4] == 8
            return ImageInfo("jpg", width, height, orientation, data[position + 9], scalable)
        if marker in (0xD9, 0xDA):
            raise DecodeError("JPEG has no frame header")
        (length,) = struct.unpack_from(">H", data, position + 2)
        if length < 2:
            raise DecodeError(f"JPEG segment of length {length} at byte {position}")
        if marker == 0xE1 and not seen_exif and data[position + 4 : position + 10] == b"Exif\0\0":
            seen_exif = True
            orientation = _exif_orientation(data[position + 10 : position + 2 + length])
        position += 2 + length


def _probe_png(data: bytes | memoryview) -> ImageInfo:
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise DecodeError("PNG has no IHDR chunk")
    width, height = struct.unpack_from(">II", data, 16)
    if not width or not height:
        raise DecodeError(f"PNG header gives {width}x{height} pixels")
    position, orientation = 8, 1
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"eXIf":
            orientation = _exif_orientation(data[position + 8 : position + 8 + length])
            break
        if kind == b"IEND":
            break
        position += 12 + length
    return ImageInfo("png", width, height, orientation)


def _probe_other(data: bytes | memoryview) -> ImageInfo:
    if not data:
        raise DecodeError("file is empty")
    try:
        with Image.open(io.BytesIO(data), formats=OPENED) as image:
            exif = image.info.get("exif", b"")
            orientation = _exif_orientation(exif.removeprefix(b"Exif\0\0")) if exif else 1
            width, height = image.size
            return ImageInfo(FORMATS[image.format or ""], width, height, orientation)
    except Image.DecompressionBombError as error:
        raise DecodeError(f"too many pixels: {error}") from error
    except Exception as error:
        # Pillow's plugins raise many kinds of exceptions on hostile bytes.
        raise DecodeError(f"not an image of a known format ({_looks_like(data)})") from error


def _exif_orientation(tiff: bytes | memoryview) -> int:
    """Orientation from the TIFF structure inside an EXIF block; 1 where it says nothing valid."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(tiff[:2]))
    if order is None:
        return 1
    try:
        (position,) = struct.unpack_from(order + "I", tiff, 4)
        (entries,) = struct.unpack_from(order + "H", tiff, position)
        for entry in range(position + 2, position + 2 + 12 * entries, 12):
            tag, kind, _, value = struct.unpack_from(order + "HHIH", tiff, entry)
            if tag == 0x0112:
                return value if kind == 3 and 1 <= value <= 8 else 1
    except struct.error:
        pass  # a damaged EXIF block is no reason to refuse the image
    return 1


def _looks_like(data: bytes | memoryview) -> str:
    data = bytes(data[:256])
    head = data.lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html")):
        return "it is an HTML page"
    if head.startswith((b"<?xml", b"<svg")):
        return "it is XML or SVG"
    if head.startswith((b"{", b"[")):
        return "it looks like JSON"
    if head.startswith(b"version https://git-lfs."):
        return "it is a Git LFS pointer; fetch the file itself with `git lfs pull`"
    if not data.strip(b"\0"):
        return "it begins with zero bytes"
    return f"it begins with {data[:8]!r}"
