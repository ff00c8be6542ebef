"""Ctrl-C as a wish to stop, so that a step is never left half made."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible(wanted: bool = True) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed; twice interrupts at once.

    Where it is not `wanted`, and in other threads than the main one, which alone is told of
    signals, Ctrl-C does what it did and the function always says no.
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
