"""Waits of tests. They end a hang and are no part of what is asserted, so they are long."""

import time
from collections.abc import Callable

PATIENCE = 300  # seconds


def wait_until(condition: Callable[[], object]) -> None:
    """Return as soon as a condition holds; raise `TimeoutError` if it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition did not hold within {PATIENCE} seconds")
        time.sleep(0.005)
