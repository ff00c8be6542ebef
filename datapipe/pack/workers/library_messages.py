"""Messages of image libraries while a sample is prepared, kept from the terminal.

Pillow warns through `warnings` and `logging`, without the name of a file; libtiff prints to the
process's standard error from C. While a process listens, both are kept, and the code that knows the
file gets them by `heard`. Tracebacks and messages of other libraries are left alone.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from PIL import Image, _imaging

DAMAGED_PIXELS = "damaged in part, as its decoder says; packed as far as it can be read"
DAMAGED_METADATA = "its metadata is damaged and was passed over"
BROKEN_ANIMATION = "an animation that is damaged; its default picture was taken"

_SOURCES = r"(PIL|pillow_heif)\b"
_NOT_WORTH_IT = ("Palette images with Transparency", "Couldn't allocate palette entry")
_ANIMATION = "Invalid APNG"
_MARKS_OF_METADATA = ("EXIF", "Metadata", "Tag ", "Truncated File Read", "MakerNote")
_FOLDER = os.path.dirname(Image.__file__)
_LENGTH = 1024  # bytes of a message of libtiff that are kept

# void (*TIFFErrorHandler)(const char *module, const char *format, va_list). On the platforms that
# Linux has wheels for, a va_list is handed over as a pointer.
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)


@dataclass
class Heard:
    """Messages about one image.

    Attributes:
        pixels: of its pixels, by libtiff.
        warned: by Pillow.
    """

    pixels: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)

    def notes(self) -> list[str]:
        """Return what a person should know of an image that was packed, one line a kind."""
        if not (self.pixels or self.warned):
            return []
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


_NOTHING = Heard()
_current = Heard()


def heard() -> Heard:
    """Return the messages since the last call, and forget them."""
    global _current
    if not (_current.pixels or _current.warned):
        return _NOTHING
    said, _current = _current, Heard()
    return said


@contextmanager
def listening() -> Iterator[None]:
    """Keep messages of image libraries in this thread for `heard`; other threads keep theirs."""
    thread = threading.get_ident()
    with warnings.catch_warnings(), _logging(thread), _libtiff(thread):
        warnings.filterwarnings("always", module=_SOURCES)
        # The size of an image is judged by `max_pixels`.
        warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
        show = warnings.showwarning

        def keep(message: Any, category: Any, filename: str, *args: Any, **options: Any) -> None:
            if threading.get_ident() == thread and filename.startswith(_FOLDER):
                _current.warned.append(str(message))
            else:
                show(message, category, filename, *args, **options)

        warnings.showwarning = keep
        yield


@contextmanager
def _logging(thread: int) -> Iterator[None]:
    def keep(record: logging.LogRecord) -> bool:
        if record.thread != thread or record.levelno < logging.WARNING:
            return True
        _current.pixels.append(record.getMessage())
        return False

    logger = logging.getLogger("PIL.TiffImagePlugin")  # the only module that logs errors
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


@contextmanager
def _libtiff(thread: int) -> Iterator[None]:
    """Keep errors of the libtiff that Pillow uses; Pillow drops its warnings itself."""
    set_handler = _set_error_handler()
    if set_handler is None:
        yield
        return
    before: Any = None

    def keep(module: bytes | None, text: bytes, arguments: int) -> None:
        if threading.get_ident() == thread:
            buffer = ctypes.create_string_buffer(_LENGTH)
            _vsnprintf(buffer, _LENGTH, text, arguments)
            _current.pixels.append(buffer.value.decode("utf-8", "replace").strip())
        elif before:
            _HANDLER(before)(module, text, arguments)

    handler = _HANDLER(keep)
    before = set_handler(ctypes.cast(handler, ctypes.c_void_p))
    try:
        yield
    finally:
        set_handler(before)


@cache
def _set_error_handler() -> Any:
    """Return `TIFFSetErrorHandler`; None if this Pillow has no libtiff, or hides it."""
    try:
        function = ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler
    except (AttributeError, OSError):
        return None
    function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return function


_vsnprintf = ctypes.CDLL(None).vsnprintf
_vsnprintf.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p]
