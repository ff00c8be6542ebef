"""Encoded images to upright RGB pixels, on the CPU.

JPEG goes through libjpeg-turbo, everything else through Pillow. What every kind of image means is
fixed here: EXIF orientation is applied, alpha is laid over white, 16-bit grey keeps its high byte,
CMYK becomes RGB as Pillow converts it, an animation gives its first frame.
"""

from __future__ import annotations

import io
import re
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from datapipe.errors import DecodeError
from datapipe.index.checksum import crc32
from datapipe.index.imageinfo import OPENED, ImageInfo, probe

Pixels = npt.NDArray[np.uint8]
"""uint8 [height, width, 3], RGB."""

MAX_PIXELS = 178_956_970
"""Most pixels an image may have: Pillow's own limit against decompression bombs (0.5 GB of RGB)."""

# Warnings of libjpeg after which the pixels are still whole; Pillow reads such files too. Stray
# bytes before the end or a header segment are none of the image's, before any other marker they are
# pixels that were not understood.
_HARMLESS = re.compile(
    r"extraneous bytes before marker 0x(d9|c[0-3]|db|dd|e[0-9a-f]|fe)"
    r"|unknown JFIF revision number|Invalid SOS parameters for sequential JPEG"
    r"|Unknown Adobe color transform code"
)


def check_size(info: ImageInfo, max_pixels: int = MAX_PIXELS) -> None:
    """Refuse an image by its header.

    Raises:
        DecodeError: it has more than `max_pixels` pixels.
    """
    if info.width * info.height > max_pixels:
        raise DecodeError(
            f"{info.width}x{info.height} is {info.width * info.height:,} pixels, "
            f"more than the limit of {max_pixels:,}"
        )


def decode_rgb(data: bytes, *, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Decode one image to upright RGB, uint8 [height, width, 3], contiguous.

    Raises:
        DecodeError: the bytes are no image, are cut off or damaged, or it has too many pixels.
    """
    info = probe(data)
    check_size(info, max_pixels)
    if info.format == "png":
        _check_png(data)
    pixels = _decode_jpeg(data) if info.components in (1, 3) else _decode_pillow(data)
    return orient(pixels, info.orientation)


def orient(pixels: Pixels, orientation: int) -> Pixels:
    """Turn stored pixels upright, as EXIF 2.32, table 6 defines the eight orientations."""
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def _decode_jpeg(data: bytes) -> Pixels:
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB")
        return pixels
    except ValueError as error:
        if _HARMLESS.search(str(error)):
            return _decode_pillow(data)
        raise DecodeError(f"JPEG is damaged: {error}") from error


def _check_png(data: bytes) -> None:
    """Verify the checksums of the chunks that pixels depend on, which Pillow does not.

    Without this, damaged compressed data may decode to a whole picture of the wrong content.
    """
    position = 8
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 8 + length
        if kind[:1].isupper() and end + 4 <= len(data):
            (stated,) = struct.unpack_from(">I", data, end)
            if crc32(memoryview(data)[position + 4 : end]) != stated:
                name = kind.decode("ascii", "replace")
                raise DecodeError(f"PNG is damaged: checksum of the {name} chunk does not match")
        if kind == b"IEND":
            return
        position = end + 4


def _decode_pillow(data: bytes) -> Pixels:
    try:
        with Image.open(io.BytesIO(data), formats=OPENED) as image:
            image.seek(0)
            return np.array(_to_rgb(image), dtype=np.uint8)
    except DecodeError:
        raise
    except Exception as error:
        # Pillow's plugins raise many kinds of exceptions on damaged files.
        raise DecodeError(f"{type(error).__name__}: {error}") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        values: npt.NDArray[Any] = np.asarray(image)
        return Image.fromarray((values >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise DecodeError("floating-point pixels have no defined range; convert them to 8 bits")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")
