"""Pages of a TIFF and frames of an animation: how many an image file has, and each as an image.

Reduced copies and masks of a TIFF are no pages (TIFF 6.0, NewSubfileType), and neither are the
further pictures of an MPO, such as the second eye's or a gain map.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
from PIL import Image

from datapipe.decode.image import MAX_PIXELS, Encoded, flatten, orient, png_chunks
from datapipe.decode.shrink import ShrinkOptions, encode_anew
from datapipe.errors import DecodeError
from datapipe.index.images.header import OPENED, ImageInfo

MOST_PAGES = 10_000
"""Pages that are looked for in a file."""

_SUBFILE, _OLD_SUBFILE = 254, 255  # tags of a TIFF
_REDUCED_OR_MASK = 0b101
_OLD_REDUCED = 2
_ANIMATED_WEBP = 0x02  # in the flags of its VP8X chunk


def count_pages(data: Encoded, info: ImageInfo) -> int:
    """Return how many pages or frames an image file has; 1 if that cannot be told.

    Files of one image are told by their first bytes where the format allows it, and no pixel is
    decoded.
    """
    if not _may_have_several(data, info.format):
        return 1
    try:
        with Image.open(io.BytesIO(data), formats=OPENED) as image:
            return max(len(_pages(image)), 1)
    except Exception:
        # Pillow's plugins raise many kinds of exceptions on damaged files; decoding says what is
        # wrong with the image that is taken.
        return 1


def encode_pages(
    data: Encoded, info: ImageInfo, options: ShrinkOptions, *, max_pixels: int = MAX_PIXELS
) -> Iterator[tuple[bytes, ImageInfo]]:
    """Yield each page encoded again, as PNG unless `options` want another format.

    Raises `DecodeError` if a page is damaged, or there are too many pages, or pixels of all
    together.
    """
    try:
        with Image.open(io.BytesIO(data), formats=OPENED) as image:
            pages = _pages(image)
            pixels = sum(size for _, size in pages)
            if pixels > max_pixels:
                raise DecodeError(
                    f"{len(pages):,} pages or frames are {pixels:,} pixels together, more than the "
                    f"limit of {max_pixels:,}; take the first alone with --pages first"
                )
            if len(pages) >= MOST_PAGES:
                raise DecodeError(f"{MOST_PAGES:,} pages or frames or more; split the file")
            for number, _ in pages:
                image.seek(number)
                yield encode_anew(_upright(image, info), "png", options)
    except DecodeError:
        raise
    except Exception as error:
        # Pillow's plugins raise many kinds of exceptions on damaged files.
        raise DecodeError(f"a page or frame is damaged: {type(error).__name__}: {error}") from error


def _may_have_several(data: Encoded, format: str) -> bool:
    if format == "png":  # which has to say that it is animated before its pixels
        kinds = (kind for kind, _, _ in png_chunks(data))
        return next((kind for kind in kinds if kind in (b"acTL", b"IDAT")), b"") == b"acTL"
    start = bytes(data[:256])
    if format == "webp":
        return start[12:16] == b"VP8X" and bool(start[20] & _ANIMATED_WEBP)
    if format == "avif":
        return b"avis" in start[8 : int.from_bytes(start[:4], "big")]
    return format in ("tif", "gif")


def _pages(image: Image.Image) -> list[tuple[int, int]]:
    """Return number and pixels of each page; a TIFF's copies and masks are left out."""
    if image.format != "TIFF":
        frames = min(getattr(image, "n_frames", 1), MOST_PAGES)
        return [(number, image.width * image.height) for number in range(frames)]
    pages = []
    for number in range(MOST_PAGES):
        try:
            image.seek(number)
        except EOFError:
            break
        tags = image.tag_v2  # type: ignore[attr-defined]
        copy = tags.get(_SUBFILE, 0) & _REDUCED_OR_MASK or tags.get(_OLD_SUBFILE) == _OLD_REDUCED
        if not number or not copy:
            pages.append((number, image.width * image.height))
    return pages


def _upright(image: Image.Image, info: ImageInfo) -> Image.Image:
    """Return the current page, upright, with its pixels and transparency alone."""
    image.load()  # turns a TIFF
    page = image.copy()
    page.info = {k: v for k, v in image.info.items() if k == "transparency"}
    if info.orientation != 1:
        page = Image.fromarray(orient(np.asarray(flatten(page)), info.orientation))
    return page
