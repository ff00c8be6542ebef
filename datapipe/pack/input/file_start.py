"""The first bytes of a file, for a look at what it holds."""

from __future__ import annotations

import os
import stat


def start_of(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the first bytes of a file; none if it cannot be read or is a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError):
        return b""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        return os.read(descriptor, most)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
