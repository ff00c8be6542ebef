"""Tiny images of one colour that tells which image it is, and bytes of other media."""

import gzip
import io
import zipfile

import numpy as np
from PIL import Image

SIZE = 24, 16
MOST = 216
"""Number of images that can be told apart."""


def colour(number: int) -> tuple[int, int, int]:
    """Return the colour of an image: its number in base six, a digit a channel."""
    assert 0 <= number < MOST
    return (20 + 42 * (number // 36), 20 + 42 * (number // 6 % 6), 20 + 42 * (number % 6))


def number_of(pixel: np.ndarray) -> int:
    """Return the number of the image that a pixel is from."""
    digits = np.clip(np.rint((pixel.astype(float) - 20) / 42), 0, 5).astype(int).tolist()
    return digits[0] * 36 + digits[1] * 6 + digits[2]


_KINDS = {"jpg": "JPEG", "jpeg": "JPEG", "tif": "TIFF", "tiff": "TIFF"}


def picture(number: int, kind: str = "jpg", size: tuple[int, int] = SIZE) -> bytes:
    """Return the file of an image."""
    buffer = io.BytesIO()
    options = {"quality": 95} if kind.lower() in ("jpg", "jpeg") else {}
    Image.new("RGB", size, colour(number)).save(
        buffer, _KINDS.get(kind.lower(), kind.upper()), **options
    )
    return buffer.getvalue()


def pages(numbers: list[int], kind: str) -> bytes:
    """Return a file of several images: pages of a TIFF, frames of a GIF, WebP or PNG."""
    first, *others = (Image.new("RGB", SIZE, colour(number)) for number in numbers)
    buffer = io.BytesIO()
    options = {} if kind in ("tif", "tiff") else {"duration": 100, "lossless": True}
    if kind in ("gif", "png"):
        options.pop("lossless", None)
    first.save(
        buffer, _KINDS.get(kind, kind.upper()), save_all=True, append_images=others, **options
    )
    return buffer.getvalue()


def medium(ext: str, number: int = 0) -> bytes:
    """Return a small file of a medium, with its signature."""
    tail = bytes([number]) * 64
    match ext:
        case "mp4" | "mov":
            return b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + tail
        case "webm" | "mkv":
            return b"\x1a\x45\xdf\xa3\x01\0\0\0\0\0\0\x1fB\x86\x81\x01" + tail
        case "wav":
            return b"RIFF\x64\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80>\0\0" + tail
        case "flac":
            return b"fLaC\0\0\0\x22" + tail
        case "mp3":
            return b"ID3\x03\0\0\0\0\0\0\xff\xfb\x90\x64" + tail
        case "pdf":
            return b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\n" + tail + b"\n%%EOF\n"
        case "npy":
            buffer = io.BytesIO()
            np.save(buffer, np.full((4, 8), number, np.float32))
            return buffer.getvalue()
        case "zip" | "pth" | "npz":
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w") as file:
                file.writestr("archive/data.pkl", b"\x80\x02]q\x00." + tail)
            return buffer.getvalue()
        case "jxl":
            return b"\xff\x0a" + tail
        case "svg":
            return f'<svg xmlns="http://www.w3.org/2000/svg"><text>{number}</text></svg>'.encode()
        case "exr":
            return b"\x76\x2f\x31\x01\x02\0\0\0channels\0" + tail
        case "img":
            return picture(100 + number)
        case "jpg.gz":
            return gzip.compress(picture(100 + number), mtime=0)
        case "tga" | "ico":
            return picture(100 + number, ext)
        case _:
            return b"\x93\x01\x02\x03" + tail
