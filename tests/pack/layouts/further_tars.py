"""Tars with other media, alone or beside images, and tars of other forms."""

import gzip
from pathlib import Path

from .pictures import medium
from .raw import Raw
from .table import LAYOUTS, TEXTS, Fate, Layout, N, captioned, counted, layout, packed, refused

_MEDIA = {
    "mp4": "video|mp4",
    "webm": "video|webm",
    "wav": "sound|audio|wav",
    "flac": "sound|audio|flac",
    "mp3": "sound|audio|mp3",
    "pdf": "document|pdf",
    "npy": "array|npy",
    "pth": "array|tensor|pth",
    "zip": "archive|zip",
    "jxl": "JPEG XL|jxl",
    "svg": "SVG|markup",
    "exr": "EXR",
    "bin": "bin",
    "img": r"\bimg\b",
    "jpg.gz": "gz",
}
"""Media that cannot be packed, and what a reject or a line of the report may call them."""

_IMAGES = ("tga", "ico")
"""Images that packing converts."""


def _alone(ext: str) -> Layout:
    """Return the layout of tars of a medium with a text: a text alone would teach nothing."""

    def make(raw: Raw) -> tuple[Fate, ...]:
        parts = {f"{n:04d}": {ext: medium(ext, n), "txt": f"text {n}"} for n in N}
        raw.shard("part-00000.tar", parts)
        fates: tuple[Fate, ...] = (refused(_MEDIA[ext]),) if ext in _MEDIA else ()
        if ext in (*_IMAGES, "img", "jpg.gz"):
            _are_images(raw)
            fates += (packed(*(captioned(100 + n, f"text {n}") for n in N)),)
        return fates

    return Layout(name=f"tar of {ext} and txt", make=make)


def _both(word: str) -> Fate:
    """Return the fate of samples of two images, one of them counted."""
    return packed(*(captioned((n, 100 + n), f"text {n}") for n in N), says=((word, 8),))


def _beside(ext: str) -> Layout:
    """Return the layout of tars of an image, a text and a medium."""

    def make(raw: Raw) -> tuple[Fate, ...]:
        parts = {f"{n:04d}": {"jpg": n, ext: medium(ext, n), "txt": f"text {n}"} for n in N}
        raw.shard("part-00000.tar", parts)
        pattern = _MEDIA.get(ext, ext)
        fates = counted(TEXTS, pattern)
        if ext in (*_IMAGES, "img", "jpg.gz"):
            _are_images(raw)
            fates += (_both(pattern),)
        return fates

    return Layout(name=f"tar of jpg, {ext} and txt", make=make)


def _are_images(raw: Raw) -> None:
    """Count the media of a raw folder as images, from number 100 on."""
    media = [item for item in raw.held if item.number is None]
    raw.held = [item for item in raw.held if item.number is not None]
    raw.held += [item._replace(number=100 + n) for n, item in enumerate(media)]


LAYOUTS += [make(ext) for ext in (*_MEDIA, *_IMAGES) for make in (_alone, _beside)]


def _companion(ext: str) -> Layout:
    """Return the layout of tars in which each image has another one that is about it."""

    def make(raw: Raw) -> tuple[Fate, ...]:
        parts = {f"{n:04d}": {"jpg": n, ext: 100 + n, "txt": f"text {n}"} for n in N}
        raw.shard("part.tar", parts)
        return *counted(TEXTS, ext), _both(ext)

    return Layout(name=f"tar of jpg, {ext} and txt", make=make)


LAYOUTS += [_companion(ext) for ext in ("seg.png", "depth.png", "mask.png", "canny.jpg")]


def _shard(raw: Raw) -> Path:
    return raw.shard("part-0.tar", {f"{n}": {"jpg": n, "txt": f"text {n}"} for n in N})


@layout("tars beside a link to their folder")
def tar_link(raw: Raw) -> Fate:
    _shard(raw)
    (raw.folder / "again").symlink_to(".")
    return packed(*TEXTS)


@layout("compressed tars")
def tar_gz(raw: Raw) -> Fate:
    path = _shard(raw)
    raw.bytes("part-0.tar.gz", gzip.compress(path.read_bytes()))
    path.unlink()
    return refused("gunzip|tar -x|decompress")
