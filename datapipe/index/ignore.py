"""Patterns of `--ignore`: files of folders and members of tars that are left out on purpose."""

from __future__ import annotations

from collections.abc import Container, Sequence
from fnmatch import fnmatchcase

from datapipe.declared import shorten


def parse_ignore(ignore: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the patterns of `--ignore`, which commas separate.

    Examples:
        >>> parse_ignore("*.mp4, *.seg.png")
        ('*.mp4', '*.seg.png')
    """
    texts = [ignore] if isinstance(ignore, str) else (ignore or ())
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def ignored_by(name: str, patterns: Sequence[str]) -> str:
    """Return the pattern of `--ignore` that matches a name, "" if none; `*` stands for `/` too.

    Examples:
        >>> ignored_by("clips/0001.MP4", ["*.wav", "*.mp4"])
        '*.mp4'
    """
    name = name.lower()
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern.lower())), "")


def why_ignored(pattern: str) -> str:
    """Return why files and members that a pattern matches are left out."""
    return f"which --ignore '{pattern}' names"


def unmatched(patterns: Sequence[str], reasons: Container[str]) -> list[str]:
    """Return a line for each pattern of `--ignore` that matches nothing, perhaps misspelt.

    `reasons` say why files and members were left out.
    """
    unused = (pattern for pattern in patterns if why_ignored(pattern) not in reasons)
    return [f"--ignore {shorten(pattern)} matches no file and no member" for pattern in unused]


def ignoring(ext: str) -> str:
    """Return the option that leaves out the members of an extension.

    Examples:
        >>> ignoring("seg.png")
        "--ignore '*.seg.png'"
    """
    return f"--ignore '*.{ext}'"
