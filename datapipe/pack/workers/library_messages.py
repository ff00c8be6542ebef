"""Messages of image libraries while a worker prepares a sample.

Pillow warns through `warnings` and `logging`, without the name of a file; libtiff prints to the
standard error of the worker. `messages_about` returns both to the code that knows the file. What
other libraries print is left alone.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass
class LibraryMessages:
    """Messages about one image."""

    pixels: list[str] = field(default_factory=list)  # of its pixels, by libtiff
    warned: list[str] = field(default_factory=list)  # by Pillow

    def notes(self) -> list[str]:
        """Return what a person should know of an image that was packed, one line a kind."""
        found = dict.fromkeys([DAMAGED_PIXELS] if self.pixels else [])
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


_current = LibraryMessages()


def messages_about(data: memoryview) -> Callable[[], LibraryMessages]:
    """Begin to work at an image; return the function that returns the messages about it."""
    global _current
    _current = LibraryMessages()
    start, by_libtiff = printed_so_far(), bytes(data[:2]) in _TIFF

    def take() -> LibraryMessages:
        global _current
        taken, _current = _current, LibraryMessages()
        if by_libtiff:
            # "ZIPDecode: Decoding error at scanline 0."
            lines = take_printed(start).splitlines()
            taken.pixels += [line.partition(": ")[2].removesuffix(".") or line for line in lines]
        return taken

    return take


def keep_messages() -> None:
    """Let this worker keep messages of Pillow for `messages_about`."""
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
    _current.pixels.append(record.getMessage())
    return False
