"""Check of an image that it can be decoded, in less time than decoding it takes.

Damage of a JPEG shows while its markers and entropy-coded data are read; the inverse transform,
upsampling and colour conversion do not fail. So a JPEG is decoded at an eighth of its size, which
reads all data and transforms next to nothing. It is decoded in colour, since libjpeg does not check
the sampling of components that grey does not need. Images that Pillow decodes are converted to RGB
only if that can fail.
"""

from __future__ import annotations

from PIL import Image

from datapipe.decode.image import (
    MAX_PIXELS,
    Encoded,
    check_size,
    decode_jpeg,
    decode_rgb,
    with_pillow,
)
from datapipe.index.images.header import ImageInfo

# Pillow converts every picture in these modes to RGB.
_CONVERTIBLE = frozenset({"1", "L", "LA", "RGB", "RGBA", "CMYK", "YCbCr"})


def check_image(data: Encoded, info: ImageInfo, *, max_pixels: int = MAX_PIXELS) -> None:
    """Raise the `DecodeError` that `decode_rgb` would raise; `info` is `probe(data)`."""
    check_size(info, max_pixels)
    factor = 8 if info.scalable else 1
    if info.components in (1, 3) and decode_jpeg(data, info, factor=factor) is not None:
        return
    if not with_pillow(data, _surely_converts):
        decode_rgb(data, max_pixels=max_pixels)


def _surely_converts(image: Image.Image) -> bool:
    """Load the image. Return whether nothing that `decode_rgb` does after that can fail."""
    if not _is_convertible(image):
        return False
    image.load()
    return _is_convertible(image)  # loading may change the mode


def _is_convertible(image: Image.Image) -> bool:
    return image.mode in _CONVERTIBLE and "transparency" not in image.info
