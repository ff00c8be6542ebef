"""One spelling of each path, so that paths from different readers can be compared.

A user gives a folder as `raw`, `./raw` or through a link, and a record names a file of it as
`raw/a/../b.jpg` or by its absolute path.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache

_FOLDERS = 4096  # whose real paths are kept


def real_paths() -> Callable[[str | os.PathLike[str]], str]:
    """Return a function that spells paths of files with the real path of their folder.

    Links to files stay what they are. The function remembers folders, so it serves as long as the
    working directory stays the same.

    Examples:
        >>> spell = real_paths()
        >>> spell("photos/../photos/1.jpg") == spell(os.path.abspath("photos/1.jpg"))
        True
    """
    real = lru_cache(_FOLDERS)(os.path.realpath)

    def spell(path: str | os.PathLike[str]) -> str:
        folder, slash, name = os.fspath(path).rpartition("/")
        try:
            return f"{real(folder + slash)}/{name}"
        except ValueError:  # a NUL, so no file has this path
            return f"{folder}/{name}"

    return spell


def folders_above(path: str | os.PathLike[str]) -> set[tuple[int, int]]:
    """Return device and inode of every folder that contains a folder, by its path and by links."""
    found = set()
    for spelled in {os.path.abspath(path), os.path.realpath(path)}:
        while (above := os.path.dirname(spelled)) != spelled:
            spelled = above
            found.add(identity_of(above))
    return found - {UNKNOWN}


UNKNOWN = (-1, -1)
"""Identity of a folder that cannot be looked at."""


def identity_of(path: str) -> tuple[int, int]:
    """Return device and inode of a file or folder; `UNKNOWN` if it cannot be looked at."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return UNKNOWN
    return status.st_dev, status.st_ino
