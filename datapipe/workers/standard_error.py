"""Standard error of a worker process: a file of its own, read after each job."""

from __future__ import annotations

import os
import sys

_is_captured = False


def capture(descriptor: int) -> None:
    """Let everything that this process prints to its standard error go into a file."""
    global _is_captured
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    _is_captured = True


def take_printed() -> str:
    """Return what this worker printed to its standard error since the last call.

    In a process that is no worker, nothing is captured.
    """
    if not _is_captured or not os.fstat(2).st_size:
        return ""
    text = printed(2)
    os.ftruncate(2, 0)
    return text


def printed(descriptor: int) -> str:
    """Return the text in such a file."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")
