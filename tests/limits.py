"""Limits of this process, which stand for systems that give no more."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limited(kind: int, most: int) -> Iterator[None]:
    """Lower a limit of the system for a while.

    With `resource.RLIMIT_FSIZE`, writes at or behind this offset of any file fail, as on a disk
    that is full.
    """
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)
