"""The loop that is found in textbooks and forums for choosing the number of workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

WORKERS = (0, 2, 4, 8, 16, 32)
_BATCHES = 10


def textbook(
    make: Callable[..., Iterable[Any]], clock: Callable[[], float] = time.perf_counter
) -> tuple[int, float]:
    """Return the number of workers whose first ten batches came soonest, with start; and seconds.

    One measurement each, with the prefetch of torch's default.
    """
    began = clock()
    times = {}
    for workers in WORKERS:
        start = clock()
        batches = iter(make(num_workers=workers, prefetch_factor=2 if workers else None))
        for _ in range(_BATCHES):
            next(batches)
        times[workers] = clock() - start
        for name in ("close", "_shutdown_workers"):
            if hasattr(batches, name):
                getattr(batches, name)()
        del batches
    return min(times, key=lambda workers: times[workers]), clock() - began
