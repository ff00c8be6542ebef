"""Waits of tests. They end a hang and are no part of what is asserted, so they are long."""

import time
from collections.abc import Callable

PATIENCE = 300  # seconds


def wait_until(condition: Callable[[], object]) -> None:
    """Return once a condition holds; a test that waits in vain fails after some minutes."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing came in {PATIENCE} seconds")
        time.sleep(0.005)
