"""Messages of image libraries while a worker prepares a sample.

Pillow warns through `warnings` and `logging`, without the name of a file; libtiff prints to the
standard error of the worker. `LibraryMessages` gives both to the code that knows the file. What
other libraries print is left alone.
"""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

from PIL import Image

from datapipe.workers.standard_error import printed_so_far, take_printed

DAMAGED_PIXELS = "damaged in part, as its decoder says; packed as far as it can be read"
DAMAGED_METADATA = "its metadata is damaged and was passed over"
BROKEN_ANIMATION = "an animation that is damaged; its default picture was taken"

_SOURCES = r"(PIL|pillow_heif)\b"
_NOT_WORTH_IT = ("Palette images with Transparency", "Couldn't allocate palette entry")
_ANIMATION = "Invalid APNG"
_MARKS_OF_METADATA = ("EXIF", "Metadata", "Tag ", "Truncated File Read", "MakerNote")
_FOLDER = os.path.dirname(Image.__file__)
_TIFF = (b"II", b"MM")


class LibraryMessages:
    """Messages about one image, from now until those about the next one."""

    def __init__(self, data: memoryview) -> None:
        global _current
        _current = self
        self._is_tiff, self._start = bytes(data[:2]) in _TIFF, printed_so_far()
        self.logged: list[str] = []  # by Pillow, of pixels
        self.warned: list[str] = []  # by Pillow

    def pixels(self) -> list[str]:
        """Take the messages about its pixels, by libtiff."""
        lines = take_printed(self._start).splitlines() if self._is_tiff else []
        # "ZIPDecode: Decoding error at scanline 0."
        said = [line.partition(": ")[2].removesuffix(".") or line for line in lines]
        return self.logged + said

    def notes(self) -> list[str]:
        """Return what a person should know of an image that was packed, one line a kind."""
        found = dict.fromkeys([DAMAGED_PIXELS] if self.pixels() else [])
        for text in self.warned:
            if text.startswith(_NOT_WORTH_IT):
                continue
            if text.startswith(_ANIMATION):
                found[BROKEN_ANIMATION] = None
            elif any(mark in text for mark in _MARKS_OF_METADATA):
                found[DAMAGED_METADATA] = None
            else:
                found[f"Pillow warns: {text}"] = None
        return list(found)


_current = LibraryMessages(memoryview(b""))


def keep_messages() -> None:
    """Let this worker keep messages of Pillow for `LibraryMessages`."""
    warnings.filterwarnings("always", module=_SOURCES)
    # The size of an image is judged by `max_pixels`.
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    show = warnings.showwarning

    def keep(message: Any, category: Any, filename: str, *args: Any, **options: Any) -> None:
        if filename.startswith(_FOLDER):
            _current.warned.append(str(message))
        else:
            show(message, category, filename, *args, **options)

    warnings.showwarning = keep
    # The only module of Pillow that logs errors.
    logging.getLogger("PIL.TiffImagePlugin").addFilter(_keep_record)


def _keep_record(record: logging.LogRecord) -> bool:
    if record.levelno < logging.WARNING:
        return True
    _current.logged.append(record.getMessage())
    return False
