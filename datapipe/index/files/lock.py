"""Locks that one process at a time holds; the system releases those of a process that died."""

from __future__ import annotations

import fcntl
import logging
import os
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from datapipe.errors import IndexMismatch

logger = logging.getLogger(__name__)


def lock_file(path: Path, work: str) -> IO[bytes]:
    """Lock a file, waiting for the process that holds it; closing the file releases it.

    The file is created, with its folder; its holder may remove both. Messages name the `work` of
    the holder, such as "counts tokens". Raises `IndexMismatch` if files cannot be locked there, and
    OSError if the file cannot be created.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            try:
                file = opened.enter_context(path.open("wb"))
            except FileNotFoundError:  # its holder has just removed the folder
                continue
            try:
                if not try_lock(file):
                    logger.warning("another process %s in %s; waiting for it", work, path.parent)
                    fcntl.flock(file, fcntl.LOCK_EX)
                if is_at(file, path):
                    opened.pop_all()
                    return file
            except OSError as error:
                raise IndexMismatch(
                    f"{path}: files here cannot be locked ({error.strerror}), so two processes "
                    "could write the same files; mount the file system with locks, or copy the "
                    "dataset to another one"
                ) from error


def try_lock(file: IO[Any] | int) -> bool:
    """Lock an open file or folder; return False if another process holds it.

    OSError if files cannot be locked there.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_at(file: IO[Any], path: Path) -> bool:
    """Return True if an open file is the one at `path`, which its holder may have removed."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
