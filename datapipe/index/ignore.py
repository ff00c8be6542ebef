"""Patterns of `--ignore`: files of folders and members of tars that are left out on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

IGNORED = "which --ignore names"
"""Why files and members that `--ignore` names are left out."""


def parse_ignore(ignore: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the patterns of `--ignore`, which commas separate.

    Examples:
        >>> parse_ignore("*.mp4, *.seg.png")
        ('*.mp4', '*.seg.png')
    """
    texts = [ignore] if isinstance(ignore, str) else (ignore or ())
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def is_ignored(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name fits one of the patterns of `--ignore`; `*` stands for `/` too."""
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)


def ignoring(ext: str) -> str:
    """Return the option that leaves out the members of an extension.

    Examples:
        >>> ignoring("seg.png")
        "--ignore '*.seg.png'"
    """
    return f"--ignore '*.{ext}'"
