"""Spellings of the names of images: as records say them, and as their files are called."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from datapipe.index.images.header import is_image_extension

Spelling = Callable[[Any], str]
"""Makes a relative path of what a file says of its image; "" where it cannot."""

_EXTENSIONS = ("jpg", "png", "jpeg", "webp", "JPG", "PNG", "JPEG", "gif", "bmp", "tif", "tiff")


def with_slashes(name: str) -> str:
    """Return a relative path; one that Windows wrote becomes one of ours."""
    return name.replace("\\", "/") if "\\" in name and "/" not in name else name


def spellings_of_names(names: Iterable[str]) -> tuple[Spelling, ...]:
    """Return how file names may be spelled: as they stand, without folders, with an extension."""
    plain: tuple[Spelling, ...] = (str, os.path.basename)
    if all(is_image_extension(name.rpartition(".")[2]) for name in names):
        return plain

    def with_extension(extension: str) -> Spelling:
        return lambda name: f"{name}.{extension}"

    return (*plain, *map(with_extension, _EXTENSIONS))
