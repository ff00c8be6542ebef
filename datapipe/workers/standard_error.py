"""Standard error of a worker process: a file of its own, read after each job."""

from __future__ import annotations

import fcntl
import os
import sys

_is_captured = False


def capture(descriptor: int) -> None:
    """Let everything that this process prints to its standard error go into a file."""
    global _is_captured
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)  # the file is cut when it is read
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    _is_captured = True


def printed_so_far() -> int:
    """Return the size of what this worker printed and `take_printed` did not take, in bytes."""
    return os.fstat(2).st_size if _is_captured else 0


def take_printed(start: int = 0) -> str:
    """Return what this worker printed to its standard error after `start` bytes, and forget it.

    Nothing is captured outside workers.
    """
    if printed_so_far() <= start:
        return ""
    text = printed(2, start)
    os.ftruncate(2, start)
    return text


def printed(descriptor: int, start: int = 0) -> str:
    """Return the text of the file of a worker's standard error."""
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size - start, start).decode(errors="replace")
