"""Ctrl-C that ends a run after its step, so that no step is left half made."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible(wanted: bool = True) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed; twice interrupts at once.

    If not `wanted`, or outside of the main thread, which alone gets signals, Ctrl-C acts as usual.
    """
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    pressed = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def press(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        pressed.set()
        print("stopping after this step; Ctrl-C again to stop at once", file=sys.stderr)

    signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
