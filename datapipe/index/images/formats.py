"""Formats of raw images that shards do not hold, and what packing converts each to.

A shard holds what every loader decodes without further packages (`header.FORMATS`). Everything
else that Pillow or pillow-heif opens is re-encoded while packing, so that no training machine
meets a format that it cannot read. What neither opens is rejected by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RawFormat:
    """A format of raw images."""

    name: str  # as messages call it
    extensions: tuple[str, ...]  # in lower case
    # "kept" as it is; re-encoded as "png", without loss, or as "jpg"; "" if rejected
    becomes: Literal["kept", "png", "jpg", ""]
    plugin: str = ""  # what Pillow calls it; "HEIF" is read by pillow-heif
    marks: tuple[bytes, ...] = ()  # what its files begin with; none if only the extension tells it


_RARE = "rare"  # called by their extensions in messages
_HEIC_MARKS = tuple(b"ftyp" + brand for brand in b"heic heix heim heis hevc hevx mif1 msf1".split())
_CAMERAS = ("cr2", "cr3", "nef", "nrw", "arw", "srf", "sr2", "dng", "orf", "rw2", "raf", "pef")
_OTHERS = (
    *("blp", "cur", "dcx", "flc", "fli", "ftc", "ftu", "gbr", "im", "msp", "pcd", "pict", "pxr"),
)

RAW_FORMATS = (
    # Other names of formats that shards hold: JPEG with further frames, animated PNG, JPEG 2000.
    RawFormat("MPO", ("mpo",), "kept"),
    RawFormat("APNG", ("apng",), "kept"),
    RawFormat("JPEG 2000", ("jpx", "jpf", "jpc", "j2c"), "kept"),
    # A lossless copy of a photograph of a phone would take five times the bytes.
    RawFormat("HEIC", ("heic", "heif", "hif"), "jpg", "HEIF", _HEIC_MARKS),
    # Pixels without loss, and PNG holds them without loss.
    RawFormat("ICO", ("ico",), "png", "ICO", (b"\0\0\1\0",)),
    RawFormat("ICNS", ("icns",), "png", "ICNS", (b"icns",)),
    RawFormat("TGA", ("tga", "icb", "vda", "vst"), "png", "TGA"),
    RawFormat("PSD", ("psd",), "png", "PSD", (b"8BPS",)),
    RawFormat("PCX", ("pcx",), "png", "PCX"),
    RawFormat("SGI", ("sgi",), "png", "SGI", (b"\1\xda",)),
    RawFormat("Sun raster", ("ras",), "png", "SUN", (b"Y\xa6j\x95",)),
    RawFormat("DDS", ("dds",), "png", "DDS", (b"DDS ",)),
    RawFormat("QOI", ("qoi",), "png", "QOI", (b"qoif",)),
    RawFormat("XBM", ("xbm",), "png", "XBM"),
    RawFormat("XPM", ("xpm",), "png", "XPM", (b"/* XPM */",)),
    # Not read by Pillow, or only with another program, or without a defined picture.
    RawFormat("JPEG XL", ("jxl",), "", marks=(b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n")),
    RawFormat("SVG", ("svg", "svgz"), ""),
    RawFormat("EPS", ("eps",), "", marks=(b"%!PS",)),
    RawFormat("WMF", ("wmf", "emf"), ""),
    RawFormat("OpenEXR", ("exr",), "", marks=(b"v/1\1",)),
    RawFormat("Radiance HDR", ("hdr",), "", marks=(b"#?RADIANCE",)),
    RawFormat("PFM", ("pfm",), ""),
    RawFormat("GIMP", ("xcf",), "", marks=(b"gimp xcf",)),
    RawFormat("FITS", ("fits", "fit"), "", marks=(b"SIMPLE  =",)),
    RawFormat("camera raw", _CAMERAS, ""),
    RawFormat(_RARE, _OTHERS, ""),
)
"""Every such format."""

_STORED = {
    "jpg": (b"\xff\xd8\xff",),
    "png": (b"\x89PNG\r\n\x1a\n",),
    "gif": (b"GIF87a", b"GIF89a"),
    "tif": (b"II*\0", b"MM\0*"),
    "jp2": (b"\0\0\0\x0cjP  \r\n\x87\n",),
}
# Sizes of the headers that follow a BMP's first one, from OS/2 1.x to Windows 98.
_BMP_HEADERS = frozenset(size.to_bytes(4, "little") for size in (12, 16, 40, 52, 56, 64, 108, 124))

_BY_EXTENSION = {ext: form for form in RAW_FORMATS for ext in form.extensions}

PACKED = frozenset(ext for ext, form in _BY_EXTENSION.items() if form.becomes)
"""Lower-case extensions of images that are packed, beside those that name what shards hold."""


def raw_format(start: bytes, name: str = "") -> RawFormat | None:
    """Return the format of an image that no loader decodes; None if it is none of `RAW_FORMATS`.

    `start` has its first bytes, 32 or more where there are as many; `name` ends like its file's.

    Examples:
        >>> raw_format(b"8BPS" + bytes(28)).name
        'PSD'
    """
    for form in RAW_FORMATS:
        at = 4 if form.plugin == "HEIF" else 0
        if start.startswith(form.marks, at):
            return form
    form_of_name = _BY_EXTENSION.get(name.rpartition(".")[2].lower())
    return None if form_of_name is None or form_of_name.marks else form_of_name


def stored_format(start: bytes) -> str:
    r"""Return the extension of the format that a file's first 18 bytes show; "" if it is unknown.

    Only formats that shards hold are looked for, without Netpbm, whose first bytes could begin a
    text.

    Examples:
        >>> stored_format(b"\xff\xd8\xff\xe0" + bytes(8)), stored_format(b"a caption")
        ('jpg', '')
    """
    for ext, marks in _STORED.items():
        if start.startswith(marks):
            return ext
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "webp"
    if start[:2] == b"BM" and start[14:18] in _BMP_HEADERS:
        return "bmp"
    return "avif" if start[4:12] in (b"ftypavif", b"ftypavis") else ""


def unsupported_image(ext: str) -> str:
    """Return why files of an extension are rejected, although they are images; "" for all others.

    Examples:
        >>> unsupported_image("jxl")
        'JPEG XL images are not supported; convert them to PNG'
    """
    form = _BY_EXTENSION.get(ext.lower())
    return refusal(form, ext) if form and not form.becomes else ""


def refusal(form: RawFormat, ext: str) -> str:
    """Return why images of a format that is not packed are rejected."""
    name = f".{ext.lower()}" if form.name == _RARE else form.name
    return f"{name} images are not supported; convert them to PNG"
