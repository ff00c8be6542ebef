"""Reduction of images on their way into shards: fewer pixels, another format, coarser JPEGs.

An image that is encoded again shows what `decode_rgb` shows: upright, alpha over white, 8 bits,
without the colour profile and other metadata, which training does not use either.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

import numpy as np
from PIL import Image

from datapipe.array_types import UInt8
from datapipe.declared import Count, Within, check_fields
from datapipe.decode.image import (
    MAX_PIXELS,
    Encoded,
    check_size,
    decode_jpeg,
    flatten,
    orient,
    scaling,
    with_pillow,
)
from datapipe.errors import DecodeError, PackError
from datapipe.index.images.header import ImageInfo, probe

ImageFormat = Literal["jpg", "webp", "keep"]
Quality = Annotated[int, Within(1, 100)]

# On photographs WebP at 87 is as close to the source as JPEG at 90 (37 dB, SSIM 0.956), in two
# thirds of the bytes.
_QUALITY = {"jpg": 90, "webp": 87}

# JPEG_MAX_DIMENSION in libjpeg's jmorecfg.h, WEBP_MAX_DIMENSION in libwebp's encode.h.
_LONGEST = {"jpg": 65_500, "webp": 16_383}

_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA"})
_KEPT = ("jpg", "png", "webp")


@dataclass(frozen=True, kw_only=True)
class ShrinkOptions:
    """Options of images that are made smaller; PackError if a value is impossible."""

    max_side: Count | None = None  # most pixels of the longer side; none is scaled up
    # of the JPEG and lossy WebP that are written: None is 90 and 87. Given, it is also the
    # most that JPEGs keep: finer ones are encoded again.
    quality: Quality | None = None
    image_format: ImageFormat = "keep"  # JPEG, PNG and WebP; others that are scaled become PNG

    def __post_init__(self) -> None:
        check_fields(self, PackError)

    @property
    def active(self) -> bool:
        """True if any image could change."""
        return (self.max_side, self.quality, self.image_format) != (None, None, "keep")


def shrink(
    data: Encoded, info: ImageInfo, options: ShrinkOptions, *, max_pixels: int = MAX_PIXELS
) -> tuple[bytes, ImageInfo] | None:
    """Return the image as `options` want it, or None if it stays as it is, byte for byte.

    An image that is encoded again was decoded fully: it needs no further check. Of one that stays
    only the header was read. Equal input and library versions give equal bytes. Raises
    `DecodeError` as `decode_rgb` does, or if the image is too long for the format it should get.
    """
    check_size(info, max_pixels)
    size = _fit(info.upright, options.max_side)
    scaled = size != info.upright
    kind = info.format if options.image_format == "keep" else options.image_format
    if scaled and kind not in _KEPT:
        kind = "png"
    converted = scaled or kind != info.format
    if not converted and not (options.quality and _is_finer(data, info, options.quality)):
        return None
    _check_sides(size, kind)
    made = encode_anew(_decode(data, info, size), kind, options)
    return made if converted or len(made[0]) < len(data) else None


def encode_anew(
    image: Image.Image, kind: str, options: ShrinkOptions, *, quality: int | None = None
) -> tuple[bytes, ImageInfo]:
    """Encode an upright image again, as small as `options` want it.

    `kind` is "png" or "jpg", for options that keep formats, and `quality` the JPEG quality where
    they give none. Modes that PNG holds without loss stay, with transparency. Raises `DecodeError`
    as `flatten` does, or if the image is too long for the format.
    """
    kind = kind if options.image_format == "keep" else options.image_format
    size = _fit(image.size, options.max_side)
    _check_sides(size, kind)
    if kind != "png" or size != image.size or image.mode not in _PNG_MODES:
        try:
            image = flatten(image)
        except (OSError, ValueError) as error:
            raise DecodeError(f"pixels of mode {image.mode} cannot become RGB: {error}") from error
    if size != image.size:
        image = image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
    encoded = _encode(image, kind, options.quality or quality or _QUALITY.get(kind, 0))
    return encoded, probe(encoded)


def _check_sides(size: tuple[int, int], kind: str) -> None:
    """Raise `DecodeError` for a size that a format cannot hold."""
    if max(size) > _LONGEST.get(kind, max(size)):
        raise DecodeError(
            f"{size[0]}x{size[1]} pixels do not fit into {kind}, whose sides have at most "
            f"{_LONGEST[kind]:,}; scale it down with --max-side {_LONGEST[kind]}"
        )


def _fit(size: tuple[int, int], max_side: int | None) -> tuple[int, int]:
    """Scale (width, height) so that the longer is at most `max_side`, rounded, none below 1."""
    longest = max(size)
    if max_side is None or longest <= max_side:
        return size
    width, height = (max(1, (side * max_side + longest // 2) // longest) for side in size)
    return width, height


def _is_finer(data: Encoded, info: ImageInfo, quality: int) -> bool:
    """Return whether a JPEG is quantised more finely than this quality would be.

    Encoding the others again would lose quality for few bytes, at every repacking once more.
    """
    if info.format != "jpg" or max(info.upright) > _LONGEST["jpg"]:
        return False
    try:
        steps = with_pillow(data, _luminance_steps)
    except DecodeError:
        return False  # it stays as it is, and `check_image` reports the damage
    return steps < _steps_of(quality)


@cache
def _steps_of(quality: int) -> int:
    return with_pillow(_encode(Image.new("L", (8, 8)), "jpg", quality), _luminance_steps)


def _luminance_steps(image: Image.Image) -> int:
    """Add up the quantisation steps of a JPEG's first table."""
    tables: dict[int, list[int]] = getattr(image, "quantization", {})
    return sum(tables[0])


def _decode(data: Encoded, info: ImageInfo, size: tuple[int, int]) -> Image.Image:
    """Decode the upright image, grey or RGB, at `size`."""
    if info.orientation >= 5:
        size = size[1], size[0]
    pixels, factor = _stored_pixels(data, info, size)
    if pixels.shape[1::-1] != size:
        # libjpeg rounds the sides up: its last pixels may be half outside the image.
        box = (0.0, 0.0, info.width / factor, info.height / factor) if factor > 1 else None
        # Of Pillow's filters, Lanczos changes the result of the later resize in training least.
        # From a gap of 3, Pillow's manual says, averaging first makes no visible difference.
        resized = Image.fromarray(pixels).resize(
            size, Image.Resampling.LANCZOS, box=box, reducing_gap=3.0
        )
        pixels = np.asarray(resized)
    return Image.fromarray(orient(pixels, info.orientation))


def _stored_pixels(data: Encoded, info: ImageInfo, size: tuple[int, int]) -> tuple[UInt8, int]:
    """Return pixels before orientation, uint8 [h, w] or [h, w, 3], and their scaling factor.

    libjpeg scales by 2, 4 or 8 at no cost; at twice the size or more, the difference is invisible.
    """
    if info.components in (1, 3):
        grey = info.components == 1 and info.scalable  # lossless grey is refused by decode_rgb
        factor = 1
        if info.scalable and max(size) >= 8:
            factor = scaling((info.width, info.height), (2 * size[0], 2 * size[1]))
        pixels = decode_jpeg(data, info, colorspace="GRAY" if grey else "RGB", factor=factor)
        if pixels is not None:
            return (pixels[..., 0] if grey else pixels), factor
    return with_pillow(data, lambda image: np.array(flatten(image))), 1


def _encode(image: Image.Image, kind: str, quality: int) -> bytes:
    buffer = io.BytesIO()
    try:
        if kind == "jpg":
            # Huffman tables of its own would save 2 % of the bytes and double the time.
            image.save(buffer, "JPEG", quality=quality, subsampling="4:2:0")
        elif kind == "webp":
            image.save(buffer, "WEBP", quality=quality)
        else:
            image.save(buffer, "PNG")
    except (OSError, ValueError) as error:
        raise DecodeError(
            f"{image.width}x{image.height} pixels cannot be written as {kind}: {error}; "
            "scale it down with --max-side"
        ) from error
    return buffer.getvalue()
