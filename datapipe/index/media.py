"""Media that no loader reads, recognised by the first bytes of a file or by its name.

Sources of the signatures: ISO/IEC 14496-12 (`ftyp`), RFC 9559 (Matroska), Microsoft RIFF, RFC 9639
(FLAC), RFC 3533 (Ogg), ISO 32000-1 (PDF), NumPy's `lib.format`, APPNOTE.TXT of PKWARE, RFC 1952.
"""

from __future__ import annotations

import codecs

from datapipe.index.images.formats import RawFormat, raw_format
from datapipe.index.tar.headers import COMPRESSED
from datapipe.text.other_media import MEDIA_EXTENSIONS

START = 64
"""Number of bytes that tell what a file holds."""

_BY_NAME = {
    **MEDIA_EXTENSIONS,
    "an array": ("npy", "npz", "pt", "pth", "pkl", "pickle", "pyd", "h5", "hdf5", "mat", "bin"),
    "a model": ("safetensors", "onnx", "ckpt"),
    "a database": ("lmdb", "mdb", "sqlite", "db", "tfrecord", "tfrecords", "arrow", "feather"),
    "markup": ("xml", "svg"),
}
_MEDIUM = {ext: what for what, exts in _BY_NAME.items() for ext in exts}
_SIGNATURES = {
    "a video": (b"\x1aE\xdf\xa3", b"FLV\x01", b"\0\0\1\xba", b"\0\0\1\xb3"),
    "sound": (b"fLaC", b"OggS", b"ID3", b"\xff\xfb", b"\xff\xf3"),
    "a document": (b"%PDF-",),
    "an array": (b"\x93NUMPY", b"\x89HDF\r\n"),
    **{f"compressed with {kind}": (mark,) for mark, (kind, _) in COMPRESSED.items()},
    "an archive": (b"PK\x03\x04", b"7z\xbc\xaf\x27\x1c", b"Rar!"),
}
_RIFF = {b"AVI ": "a video", b"WAVE": "sound"}
# Control characters that no text has, next to tab, line ends and form feed.
_BINARY = frozenset(range(32)) - {9, 10, 12, 13}


def medium_of(name: str) -> str:
    """Return the medium that a file's name suggests, such as "a video"; "" if unknown.

    Examples:
        >>> medium_of("0001.MP4"), medium_of("0001.cls")
        ('a video', '')
    """
    return _MEDIUM.get(name.lower().rpartition(".")[2], "")


def is_video(name: str) -> bool:
    """Return whether a file's name, or its extension, is that of a video."""
    return medium_of(name) == "a video"


def unread_medium(start: bytes, name: str) -> str:
    """Return the medium of a file that is neither an image that loaders decode nor text.

    It is "a video", "sound", "an image (JPEG XL)" and the like; "binary data" for other bytes that
    are no text; "" for text, such as a class number. `start` are the file's first bytes, `START` of
    them if it has as many; `name` is its name, or its extension.

    Examples:
        >>> unread_medium(b"fLaC" + bytes(60), "0001.audio"), unread_medium(b"7", "0001.cls")
        ('sound', '')
    """
    if form := raw_format(start, name):
        return image_of(form, name)
    if start[:4] == b"RIFF" and start[8:12] in _RIFF:
        return _RIFF[start[8:12]]
    if start[4:8] == b"ftyp":
        return "sound" if start[8:11] == b"M4A" else "a video"
    if start and is_text(start):
        return ""
    named = medium_of(name)
    if named and named != "markup":  # `.npz` and `.docx` are archives to their bytes
        return named
    for medium, signatures in _SIGNATURES.items():
        if start.startswith(signatures):
            return medium
    return "binary data" if start else ""


def image_of(form: RawFormat, name: str) -> str:
    """Return what a message calls an image of a format that no loader decodes."""
    kind = f".{name.rpartition('.')[2].lower()}" if form.name == "rare" else form.name
    return f"an image ({kind})"


def is_text(start: bytes) -> bool:
    """Return whether the first bytes of a file are UTF-8 text; a cut last character counts."""
    if not _BINARY.isdisjoint(start):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return True
