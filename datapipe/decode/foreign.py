"""Conversion of raw images that no loader decodes to a format that all decode.

`index/images/formats.py` has these formats and what each becomes. The result was decoded fully and
shows what the original shows: upright, its first or largest picture.
"""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

from datapipe.decode.image import MAX_PIXELS, Encoded, check_size
from datapipe.decode.shrink import ShrinkOptions, encode_anew
from datapipe.errors import DecodeError
from datapipe.extras import install_command
from datapipe.index.images.formats import RawFormat, refusal
from datapipe.index.images.header import ImageInfo

PHOTO_QUALITY = 95
"""JPEG quality of photographs that are encoded again for their format alone."""


def convert(
    data: Encoded,
    form: RawFormat,
    options: ShrinkOptions,
    *,
    max_pixels: int = MAX_PIXELS,
    ext: str = "",
) -> tuple[bytes, ImageInfo, str]:
    """Encode an image again as `options` want it; return it, its `probe` and its format.

    "keep" of a format means what `form` becomes. `ext` is for messages. Raises `DecodeError` if the
    format is not supported, a package for it is missing, or the image is damaged or over
    `max_pixels`.
    """
    if form.becomes not in ("png", "jpg"):
        raise DecodeError(refusal(form, ext))
    image = _open(data, form, max_pixels)
    quality = PHOTO_QUALITY if options.image_format == "keep" else None
    encoded, info = encode_anew(image, form.becomes, options, quality=quality)
    return encoded, info, info.format.upper() if info.format != "jpg" else "JPEG"


def _open(data: Encoded, form: RawFormat, max_pixels: int) -> Image.Image:
    """Return the first picture, or the primary one of a HEIC, which its decoder turns upright."""
    is_heif = form.plugin == "HEIF"
    file: Any
    try:
        if is_heif:
            import pillow_heif

            file = pillow_heif.open_heif(io.BytesIO(data), convert_hdr_to_8bit=True)
        else:
            file = Image.open(io.BytesIO(data), formats=(form.plugin,))
        check_size(ImageInfo("", *file.size), max_pixels)
        if is_heif:
            file = file.to_pillow()
            file.info = {}  # EXIF of HEIC repeats an orientation that is applied already
        file.load()
    except DecodeError:
        raise
    except ImportError as error:
        raise DecodeError(
            f"HEIC images need pillow-heif: install it with {install_command('heic')}, or "
            "convert them to JPEG"
        ) from error
    except Exception as error:
        # Both libraries raise many kinds of exceptions on damaged files.
        why = f": {error}" if is_heif else " or of a kind that Pillow does not read"
        raise DecodeError(f"{form.name} is damaged{why}") from error
    image: Image.Image = file
    return image
