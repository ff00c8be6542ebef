"""Paths as users write them."""

from __future__ import annotations

import os
import re

_LONGEST_NAME, _LONGEST_PATH = 255, 4096  # bytes, of Linux
_NOT_ONE_FILE = re.compile(r"::|://|[{*?\[]")  # a URL, or a list of shards


def path_problem(text: str, encoded: bytes) -> str:
    """Return what a path with these bytes should be that no file can have; "" for others."""
    if "\0" in text:
        return "a path without NUL characters"
    if not _NOT_ONE_FILE.search(text) and (
        len(encoded) > _LONGEST_PATH or max(map(len, encoded.split(b"/"))) > _LONGEST_NAME
    ):
        return f"a path of at most {_LONGEST_PATH:,} bytes, {_LONGEST_NAME} between two slashes"
    return ""


def expand_home(path: str) -> str:
    """Return a path with the home folder for a leading `~`, as a shell does.

    In a list of shards each part may begin with one. A file or folder of that name stays.

    Examples:
        >>> expand_home("~/shards") == os.path.expanduser("~/shards")
        True
    """
    if "~" not in path or os.path.lexists(path):
        return path
    return "::".join(map(os.path.expanduser, path.split("::")))
