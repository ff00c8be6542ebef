"""Encoded images to upright RGB pixels, on the CPU.

libjpeg-turbo decodes JPEG, Pillow everything else. Every kind of image has one meaning: EXIF
orientation is applied, alpha is laid over white, 16-bit grey keeps its high byte, CMYK becomes RGB
as Pillow converts it, an animation gives its first frame.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, UnidentifiedImageError

from datapipe.array_types import UInt8
from datapipe.errors import DecodeError
from datapipe.index.files.crc32 import crc32
from datapipe.index.images.header import OPENED, PNG_MAGIC, ImageInfo, probe

Encoded = bytes | memoryview
"""An encoded image: contiguous bytes, or a view of them."""

MAX_PIXELS = 178_956_970
"""Most pixels an image may have: Pillow's own limit against decompression bombs (0.5 GB of RGB)."""

_T = TypeVar("_T")
_Scalar = TypeVar("_Scalar", bound=np.generic)

# Warnings of libjpeg after which the pixels are still whole; Pillow reads such files too. Stray
# bytes before the end or a header segment do not belong to the image; before any other marker they
# are pixels that were not understood.
_HARMLESS = re.compile(
    r"extraneous bytes before marker 0x(d9|c[0-3]|db|dd|e[0-9a-f]|fe)"
    r"|unknown JFIF revision number|Invalid SOS parameters for sequential JPEG"
    r"|Unknown Adobe color transform code"
)
# Pillow converts every picture in these modes to RGB.
_CONVERTIBLE = frozenset({"1", "L", "LA", "RGB", "RGBA", "CMYK", "YCbCr"})


def check_size(info: ImageInfo, max_pixels: int = MAX_PIXELS) -> None:
    """Raise `DecodeError` if an image has more than `max_pixels` by its header."""
    if info.width * info.height > max_pixels:
        raise DecodeError(
            f"{info.width}x{info.height} is {info.width * info.height:,} pixels, "
            f"more than the limit of {max_pixels:,}"
        )


def check_indexed(found: tuple[int, int], indexed: tuple[int, int]) -> None:
    """Raise `DecodeError` for another (width, height) than the plan counted on."""
    if found != indexed:
        raise DecodeError(
            f"it is {found[0]}x{found[1]}, the index says {indexed[0]}x{indexed[1]}; index the "
            "shards again"
        )


def decode_rgb(data: Encoded, *, max_pixels: int = MAX_PIXELS) -> UInt8:
    """Decode one image to upright RGB, uint8 [height, width, 3], contiguous.

    Raises `DecodeError` if the bytes are no image, are cut off or damaged, or it has too many
    pixels.
    """
    return decode_for(data, max_pixels=max_pixels).pixels


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded image, perhaps at a part of its size."""

    pixels: UInt8  # uint8 [h, w, 3], RGB, upright; of any strides
    width: int  # of the whole image, upright, in pixels, before any scaling; so is `height`
    height: int


def decode_for(
    data: Encoded,
    target: Callable[[int, int], tuple[int, int]] | None = None,
    *,
    max_pixels: int = MAX_PIXELS,
) -> Decoded:
    """Decode one image to upright RGB, no larger than it needs to be; errors as of `decode_rgb`.

    `target` maps the (height, width) of the upright image to those that it will be resized to. A
    JPEG is then decoded at 1/2, 1/4 or 1/8 of its size if both sides stay at least as long as that.
    Decoding and resizing take a quarter to half less time; on photographs the result differs by 3
    grey levels on average from that of the whole image, and by 1 if the sides stay twice as long:
    double the target for that. None decodes the whole image.
    """
    info = probe(data)
    check_size(info, max_pixels)
    width, height = info.upright
    pixels = None
    if info.components in (1, 3):
        factor = 1
        if target is not None and info.scalable:
            factor = scaling((height, width), target(height, width))
        pixels = decode_jpeg(data, info, factor=factor)
        if pixels is not None and factor > 1:
            # libjpeg rounds the sides up. A last row or column that is mostly outside of the
            # image would shift what is resized, by up to half as many grey levels as the scaling.
            down, across = ((side + factor // 2) // factor for side in (info.height, info.width))
            pixels = pixels[:down, :across]
    if pixels is None:
        pixels = with_pillow(data, lambda image: np.array(flatten(image).convert("RGB")))
    return Decoded(orient(pixels, info.orientation), width, height)


def scaling(size: tuple[int, int], target: tuple[int, int]) -> int:
    """Return the largest of 8, 4, 2 and 1 that scales `size` down and still covers `target`."""
    if max(size) < 8:
        return 1  # libjpeg is told sides, not factors, and of few pixels several give the same
    most = min(side // wanted for side, wanted in zip(size, target, strict=True))
    return next((factor for factor in (8, 4, 2) if factor <= most), 1)


def check_image(data: Encoded, info: ImageInfo, *, max_pixels: int = MAX_PIXELS) -> None:
    """Raise the `DecodeError` that `decode_rgb` would raise, sooner; `info` is `probe(data)`.

    Damage of a JPEG shows while its markers and entropy-coded data are read; the inverse transform,
    upsampling and colour conversion do not fail. So a JPEG is decoded at an eighth of its size,
    which reads all data and transforms next to nothing. It is decoded in colour, since libjpeg does
    not check the sampling of components that grey does not need. Images that Pillow decodes are
    converted to RGB only if that can fail.
    """
    check_size(info, max_pixels)
    factor = 8 if info.scalable else 1
    if info.components in (1, 3) and decode_jpeg(data, info, factor=factor) is not None:
        return

    def surely_converts(image: Image.Image) -> bool:
        if not _is_convertible(image):
            return False
        image.load()
        return _is_convertible(image)  # loading may change the mode

    if not with_pillow(data, surely_converts):
        decode_rgb(data, max_pixels=max_pixels)


def _is_convertible(image: Image.Image) -> bool:
    return image.mode in _CONVERTIBLE and "transparency" not in image.info


def orient(pixels: npt.NDArray[_Scalar], orientation: int) -> npt.NDArray[_Scalar]:
    """Turn stored pixels [h, w, ...] upright, as EXIF 2.32, table 6 defines the orientations."""
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if pixels.ndim == 2 or orientation == 4:
        return np.ascontiguousarray(pixels)
    # A channel at a time: NumPy copies three contiguous bytes one by one.
    upright = np.empty(pixels.shape, pixels.dtype)
    for channel in range(pixels.shape[2]):
        upright[..., channel] = pixels[..., channel]
    return upright


def decode_jpeg(
    data: Encoded, info: ImageInfo, *, colorspace: str = "RGB", factor: int = 1
) -> UInt8 | None:
    """Decode a JPEG of one or three components as it is stored; None if only Pillow takes it.

    A `factor` of 2, 4 or 8 scales a `scalable` JPEG down by it, sides rounded up. `colorspace` is
    "RGB", or "GRAY" for one channel. Raises `DecodeError` if it is damaged.
    """
    least = {}
    if factor > 1:
        assert info.scalable
        least = {"min_width": -(-info.width // factor), "min_height": -(-info.height // factor)}
    try:
        pixels: UInt8 = simplejpeg.decode_jpeg(data, colorspace, **least)
        return pixels
    except ValueError as error:
        if _HARMLESS.search(str(error)):
            return None
        raise DecodeError(f"JPEG is damaged: {error}") from error


def png_chunks(data: Encoded) -> Iterator[tuple[bytes, int, int]]:
    """Yield (type, start, length) of the content of each chunk of a PNG; the last may be cut."""
    position, size = 8, len(data)
    while position + 8 <= size:
        length, kind = struct.unpack_from(">I4s", data, position)
        yield kind, position + 8, length
        position += length + 12


def _check_png(data: Encoded) -> None:
    """Verify the checksums of the chunks that pixels depend on, which Pillow does not.

    Without this, damaged compressed data may decode to a whole picture of the wrong content.
    """
    for kind, start, length in png_chunks(data):
        end = start + length
        if kind[:1].isupper() and end + 4 <= len(data):
            (stated,) = struct.unpack_from(">I", data, end)
            if crc32(memoryview(data)[start - 4 : end]) != stated:
                name = kind.decode("ascii", "replace")
                raise DecodeError(f"PNG is damaged: checksum of the {name} chunk does not match")
        if kind == b"IEND":
            return


def with_pillow(data: Encoded, use: Callable[[Image.Image], _T]) -> _T:
    """Return what `use` makes of the first frame; `DecodeError` if opening it or `use` fails."""
    if data[:8] == PNG_MAGIC:
        _check_png(data)
    try:
        with Image.open(io.BytesIO(data), formats=OPENED) as image:
            image.seek(0)
            return use(image)
    except DecodeError:
        raise
    except UnidentifiedImageError:
        # Its own message has the address of an object, which differs in every run.
        raise DecodeError("Pillow cannot read the header") from None
    except Exception as error:
        # Pillow's plugins raise many kinds of exceptions on damaged files.
        raise DecodeError(f"{type(error).__name__}: {error}") from error


def flatten(image: Image.Image) -> Image.Image:
    """Return the image as "L" or "RGB", without alpha; `DecodeError` for pixels of floats."""
    if image.mode.startswith("I"):
        values: npt.NDArray[Any] = np.asarray(image)
        return Image.fromarray((values >> 8).clip(0, 255).astype(np.uint8))
    if image.mode == "F":
        raise DecodeError("floating-point pixels have no defined range; convert them to 8 bits")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        colour = image.convert("RGBA")  # loads, and may turn a TIFF
        white = Image.new("RGBA", colour.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, colour).convert("RGB")
    if image.mode in ("L", "RGB"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")
