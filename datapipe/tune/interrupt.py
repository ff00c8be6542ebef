"""Ctrl-C that Python swallows."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def remembered_interrupt() -> Iterator[Callable[[], None]]:
    """Remember a Ctrl-C, which may come while `__del__` or a callback runs.

    Python swallows an exception there, and a sweep would continue for minutes.

    Yields:
        A function that raises `KeyboardInterrupt` if SIGINT raised one anywhere.
    """
    before = signal.getsignal(signal.SIGINT)
    came = False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal came
        assert callable(before)
        try:
            before(number, frame)
        except KeyboardInterrupt:
            came = True
            raise

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    # Only the main thread may set handlers; it is also the one that Ctrl-C interrupts.
    replaced = callable(before) and threading.current_thread() is threading.main_thread()
    if replaced:
        signal.signal(signal.SIGINT, remember)
    try:
        yield check
    finally:
        if replaced:
            signal.signal(signal.SIGINT, before)
