"""JPEGs that DALI reads as the CPU kernels do, without the segments that it may misread.

DALI and the decoders of a GPU read the rare parts of the format in their own ways: colours stored
as RGB are guessed, an orientation of a wrong type is used, and of two EXIF segments DALI 2.4
measures the image by one and turns it by the other, which corrupts memory and ends the process. So
it gets plain JPEGs alone, and of their headers only the segments that pixels depend on (ITU-T T.81
annex B), with the orientation of `probe`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from datapipe.index.images.header import ImageInfo

# Markers of ITU-T T.81, table B.1. The CPU kernels decode extended, arithmetic and lossless frames,
# and all that is rarer still.
_BASELINE, _PROGRESSIVE = 0xC0, 0xC2
_DHT, _DQT, _DRI = 0xC4, 0xDB, 0xDD
_JFIF, _ADOBE = 0xE0, 0xEE
_OTHERS = (frozenset(range(0xE0, 0xF0)) | {0xFE}) - {_JFIF, _ADOBE}  # APPn and COM
_SCAN = 0xDA
_START, _END = b"\xff\xd8", b"\xff\xd9"

# Sampling factors of luma over those of chroma, which are 1x1: the subsamplings in nvJPEG's manual.
_SAMPLINGS = frozenset({0x11, 0x21, 0x22, 0x12, 0x41})
_YCC = 1  # colour transform of an Adobe segment (T.872, 6.5.3)


def plain_jpeg(data: bytes, info: ImageInfo) -> bytes | None:
    """Return the JPEG for DALI, or None if the CPU kernels have to decode it.

    Plain is a baseline or progressive JPEG of 8 bits, grey or YCbCr, of a usual subsampling, whose
    segments follow each other without a gap and which has tables and an end. One that was cut off
    has no end: compressed data cannot contain its two bytes. Damage inside the compressed data is
    not looked for.

    The result is `data` itself if it holds only segments that pixels depend on; else a copy without
    EXIF, colour profile, comments and the like, and with the orientation, if there is one, in an
    EXIF segment of our own.
    """
    if not info.scalable or info.components not in (1, 3):
        return None
    try:
        return _plain(data, info)
    except (IndexError, struct.error):  # a segment ends behind the data
        return None


def _plain(data: bytes, info: ImageInfo) -> bytes | None:
    kept = [_START] if info.orientation == 1 else [_START, _exif(info.orientation)]
    jfif, transform, frame, scan = False, None, b"", b""
    copied, seen = len(_START), set()
    for marker, start, end in _segments(data):
        seen.add(marker)
        if marker in (_BASELINE, _PROGRESSIVE) and not frame:
            frame = data[start + 1 : end]
        elif marker == _SCAN:
            scan = data[start + 4 : end]
        elif marker == _JFIF:
            jfif = jfif or data[start + 4 : start + 9] == b"JFIF\0"
        elif marker == _ADOBE:
            # An Adobe segment of another make may mean anything.
            transform = data[start + 15] if data[start + 4 : start + 9] == b"Adobe" else -1
        elif marker in _OTHERS:
            kept.append(data[copied:start])
            copied = end
        elif marker not in (_DHT, _DQT, _DRI):
            return None
    if not seen >= {_DHT, _DQT, _SCAN} or data.rfind(_END, end) < 0:
        return None
    if not _is_unambiguous(frame, scan, jfif, transform):
        return None
    if copied == len(_START) and info.orientation == 1:
        return data
    kept.append(data[copied:])
    return b"".join(kept)


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, end) of each segment up to the first scan's header, or to a gap."""
    marker, end = 0, len(_START)
    while marker != _SCAN and data[end] == 0xFF:
        start, marker = end, data[end + 1]
        (length,) = struct.unpack_from(">H", data, start + 2)
        if length < 2:
            return
        end = start + 2 + length
        yield marker, start, end


def _is_unambiguous(frame: bytes, scan: bytes, jfif: bool, transform: int | None) -> bool:
    """Return whether all decoders agree on colours and sampling.

    `frame` begins with its marker's second byte, `scan` is the first scan's header, and `transform`
    comes from the Adobe segment, None without one. A JFIF segment says grey or YCbCr.
    """
    if not frame or frame[3] != 8:
        return False
    count = frame[8]
    if len(frame) != 9 + 3 * count:
        return False
    components = [frame[start : start + 3] for start in range(9, len(frame), 3)]
    if frame[0] == _BASELINE and scan[0] != count:
        return False  # a scan for each component
    samplings = [sampling for _, sampling, _ in components]
    if count == 1:
        return samplings == [0x11]
    if samplings[0] not in _SAMPLINGS or samplings[1:] != [0x11, 0x11]:
        return False
    if transform is not None:
        return transform == _YCC
    return jfif or [number for number, _, _ in components] == [1, 2, 3]


def _exif(orientation: int) -> bytes:
    """Return an APP1 segment with nothing but an orientation (Exif 2.32, section 4.6)."""
    tiff = struct.pack(">2sHI H HHIHH I", b"MM", 42, 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    return struct.pack(">HH", 0xFFE1, 8 + len(tiff)) + b"Exif\0\0" + tiff
