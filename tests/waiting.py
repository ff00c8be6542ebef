"""Waits of tests. They end a hang and are no part of what is asserted, so they are long."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 300  # seconds


def wait_until(condition: Callable[[], object]) -> None:
    """Return as soon as a condition holds; raise `TimeoutError` if it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition did not hold within {PATIENCE} seconds")
        time.sleep(0.005)


class Overdue(BaseException):
    """A block took too long; no `except Exception` swallows it."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise `Overdue` once a block has taken so many seconds."""

    def ring(*_: Any) -> None:
        raise Overdue

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
