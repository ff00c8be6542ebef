"""Image files: cut off, damaged, misnamed, of every kind and size, and what is none."""

import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

from . import EITHER, Case, Cases

LIMIT = 500_000
"""Pixels from which on an image counts as a bomb here."""

_SIZE = 40, 30
_KINDS = {
    "jpg": ("JPEG", {"quality": 80}),
    "png": ("PNG", {}),
    "webp": ("WEBP", {"quality": 80}),
    "gif": ("GIF", {}),
    "tif": ("TIFF", {}),
    "bmp": ("BMP", {}),
}


def picture(mode: str = "RGB", size: tuple[int, int] = _SIZE, seed: int = 0) -> Image.Image:
    """Something between noise and a gradient."""
    width, height = size
    noise = np.random.default_rng(seed).integers(0, 60, (height, width, 3), dtype=np.uint8)
    ramp = np.linspace(0, 190, width, dtype=np.uint8)[None, :, None]
    return Image.fromarray(noise + ramp).convert(mode)


def encode(kind: str, image: Image.Image | None = None, **options: object) -> bytes:
    """An image (by default the picture) as a file of this kind."""
    buffer = io.BytesIO()
    name, usual = _KINDS[kind]
    (image or picture()).save(buffer, name, **{**usual, **options})
    return buffer.getvalue()


def image_cases() -> Cases:
    """Files by name."""
    cases: Cases = {}
    for make in (_cut, _damaged, _misnamed, _no_images, _bombs, _moving):
        for name, case in make():
            assert name not in cases, name
            cases[name] = case
    return cases


def _cut() -> Iterator[tuple[str, Case]]:
    for kind in _KINDS:
        whole = encode(kind)
        places = {1, 2, 3, 8, 12, 20, 33, len(whole) - 1, len(whole) - 2, len(whole) - 9}
        places |= {len(whole) * part // 10 for part in range(1, 10)}
        for place in sorted(places):
            yield f"cut-{kind}-{place:05d}.{kind}", Case(whole[:place], EITHER)
    progressive = encode("jpg", progressive=True)
    for part in range(1, 8):
        yield (
            f"cut-progressive-{part}.jpg",
            Case(progressive[: len(progressive) * part // 8], EITHER),
        )


def _damaged() -> Iterator[tuple[str, Case]]:
    for number, kind in enumerate(_KINDS):
        whole = encode(kind)
        rng = np.random.default_rng(number)
        for part in range(14):
            start, stop = len(whole) * part // 14, len(whole) * (part + 1) // 14
            broken = bytearray(whole)
            broken[int(rng.integers(start, stop))] ^= int(rng.integers(1, 256))
            yield f"flip-{kind}-{part:02d}.{kind}", Case(bytes(broken), EITHER)
            broken = bytearray(whole)
            place = int(rng.integers(start, stop))
            broken[place : place + 16] = bytes(16) if part % 2 else b"\xff" * 16
            yield f"wiped-{kind}-{part:02d}.{kind}", Case(bytes(broken), EITHER)
        half = len(whole) // 2
        yield f"shifted-{kind}.{kind}", Case(whole[:half] + whole[half + 1 :], EITHER)
        yield f"doubled-{kind}.{kind}", Case(whole + whole, EITHER)
        yield f"trailing-{kind}.{kind}", Case(whole + bytes(1000), EITHER)
        yield f"leading-{kind}.{kind}", Case(b"\r\n" + whole, "not an image of a known format")


def _misnamed() -> Iterator[tuple[str, Case]]:
    names = ("jpg", "png", "webp", "gif", "tiff", "bmp", "JPEG", "jp2", "avif", "ppm", "dib")
    for kind in _KINDS:
        for number, name in enumerate(names):
            content = encode(kind, picture(seed=number))
            yield f"true-{kind}-called.{name}", Case(content)


def _no_images() -> Iterator[tuple[str, Case]]:
    unknown = "not an image of a known format"
    contents = {
        "empty": (b"", "file is empty"),
        "html": (b"<!DOCTYPE html><title>404</title>", "HTML page"),
        "html-later": (b"\r\n\t <HTML><body>", "HTML page"),
        "xml": (b'<?xml version="1.0"?><Error>AccessDenied</Error>', "XML or SVG"),
        "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "XML or SVG"),
        "json": (b'{"error": "rate limited"}', "looks like JSON"),
        "list": (b"[1, 2]", "looks like JSON"),
        "text": (b"not found\n", unknown),
        "pointer": (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n",
            "git lfs pull",
        ),
        "zeros": (bytes(5000), "zero bytes"),
        "ones": (b"\xff" * 5000, unknown),
        "space": (b" " * 300, unknown),
        "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "EPS images"),
        "pdf": (b"%PDF-1.7\n", unknown),
        "zip": (b"PK\x03\x04" + bytes(60), unknown),
        "gzip": (b"\x1f\x8b\x08" + bytes(60), unknown),
        "icon": (b"\0\0\1\0\1\0\x10\x10" + bytes(60), "ICO is damaged"),
        "psd": (b"8BPS\0\1" + bytes(60), "PSD is damaged"),
        "marker": (b"\xff\xd8\xff", "JPEG ends before its frame header"),
        "markers": (b"\xff\xd8" * 50, "JPEG ends before its frame header"),
        "fill": (b"\xff\xd8" + b"\xff" * 9000, "JPEG ends before its frame header"),
        "scan": (b"\xff\xd8\xff\xda\0\2", "JPEG has no frame header"),
        "length": (b"\xff\xd8\xff\xe0\0\0" + bytes(60), "JPEG segment of length 0"),
    }
    for name, (content, fate) in contents.items():
        yield f"none-{name}.jpg", Case(content, fate)
        yield f"none-{name}.PNG", Case(content, fate)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width: int, height: int, data: bytes, depth: int = 8, colour: int = 0) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (_chunk(b"IHDR", head), _chunk(b"IDAT", zlib.compress(data)), _chunk(b"IEND", b""))
    )


def _bombs() -> Iterator[tuple[str, Case]]:
    many = "more than the limit of 500,000"
    for side in (1 << 10, 1 << 16, 1 << 20, (1 << 31) - 1):
        yield f"bomb-png-{side}.png", Case(_png(side, side, b""), many)
    yield "bomb-png-negative.png", Case(_png(1 << 31, 1, b""), many)
    for width, height in ((0, 0), (0, 5), (5, 0)):
        yield f"none-png-{width}x{height}.png", Case(_png(width, height, b""), "header gives")
    jpeg = encode("jpg")
    frame = jpeg.index(b"\xff\xc0")
    for side in (1024, 65_500, 65_535):
        sides = struct.pack(">HH", side, side)
        yield f"bomb-jpg-{side}.jpg", Case(jpeg[: frame + 5] + sides + jpeg[frame + 9 :], many)
    for side in (0, 1):
        sides = struct.pack(">HH", side, 0)
        content = jpeg[: frame + 5] + sides + jpeg[frame + 9 :]
        yield f"none-jpg-{side}.jpg", Case(content, "header gives")
    gif = encode("gif")
    bmp = encode("bmp")
    for side in (1024, 20_000, 65_535):
        many = many if side < 20_000 else "too many pixels"  # for Pillow, whatever our limit
        sides = struct.pack("<HH", side, side)
        yield f"bomb-gif-{side}.gif", Case(gif[:6] + sides + gif[10:], many)
        sides = struct.pack("<ii", side, side)
        yield f"bomb-bmp-{side}.bmp", Case(bmp[:18] + sides + bmp[26:], many)
    many = "more than the limit of 500,000"
    white = Image.new("L", (2000, 2000), 255)
    for kind in ("png", "jpg", "webp", "gif", "bmp"):
        yield f"bomb-real-{kind}.{kind}", Case(encode(kind, white), many)
    yield "bomb-real-tif.tif", Case(encode("tif", white, compression="tiff_lzw"), many)
    text = _chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(80 << 20), 9))
    png = encode("png")
    yield "bomb-text.png", Case(png[:33] + text + png[33:], EITHER)
    profile = _chunk(b"iCCP", b"icc\0\0" + zlib.compress(bytes(80 << 20), 9))
    yield "bomb-profile.png", Case(png[:33] + profile + png[33:], EITHER)
    yield "bomb-pixels.png", Case(_png(*_SIZE, bytes(1 << 22)), EITHER)


def _moving() -> Iterator[tuple[str, Case]]:
    frames = [picture(seed=seed) for seed in range(3)]
    for kind in ("gif", "webp", "png", "tif"):
        whole = encode(kind, frames[0], save_all=True, append_images=frames[1:])
        yield f"moving-{kind}.{kind}", Case(whole)
        for part in range(1, 6):
            yield f"moving-{kind}-cut-{part}.{kind}", Case(whole[: len(whole) * part // 6], EITHER)
