"""Threads that each work alone in torch, and leave its default to the others.

torch keeps its number of threads per thread, and a default for new ones. To set it in a thread sets
the default of the process too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

_STARTING = threading.Lock()


def work_alone() -> None:
    """Make torch use no other thread for the work of this one."""
    # A thread takes the default over at its first question, which must not come after the answer.
    torch.get_num_threads()
    torch.set_num_threads(1)


@contextmanager
def alone() -> Iterator[None]:
    """Make torch use no other thread for the work of this one inside the block.

    Images are too small for several threads, which would spin while they wait for each other.

    Examples:
        >>> with alone():
        ...     print(torch.get_num_threads())
        1
    """
    before = torch.get_num_threads()
    try:
        if before > 1:
            torch.set_num_threads(1)
        yield
    finally:
        if before > 1:
            torch.set_num_threads(before)


@contextmanager
def default_kept() -> Iterator[None]:
    """Keep torch's default although threads that start meanwhile call `work_alone`."""
    with _STARTING:
        before = torch.get_num_threads()
        try:
            yield
        finally:
            torch.set_num_threads(before)


def single_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of `count` threads that each work alone.

    Examples:
        >>> with single_threads(2, "example") as pool:
        ...     print(pool.submit(torch.get_num_threads).result())
        1
    """
    with default_kept():
        pool = ThreadPoolExecutor(count, thread_name_prefix=name, initializer=work_alone)
        # Threads start with their work, and all have to start now.
        started = threading.Barrier(count + 1)
        try:
            for _ in range(count):
                pool.submit(started.wait)
            started.wait()
        except BaseException:  # such as no room for another thread: the others must not wait for it
            started.abort()
            pool.shutdown(wait=False)
            raise
    return pool
