"""Training loops on a clock whose time passes when a test says so."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

import datapipe


class Clock:
    """Nanoseconds, of which `sleep` spends some."""

    def __init__(self) -> None:
        self.now = 10**12

    def __call__(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)


class Batches:
    """So many batches, each after some seconds; the first of a pass later."""

    def __init__(self, clock: Clock, count: int, wait: float = 0.0, first: float = 0.0) -> None:
        self.clock, self.count, self.wait, self.first = clock, count, wait, first

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        self.clock.sleep(self.first)
        for number in range(self.count):
            self.clock.sleep(self.wait)
            yield number


def train(
    monitor: datapipe.Monitor,
    batches: Iterable[Any],
    clock: Clock,
    *,
    step: float = 0.0,
    transfer: float = 0.0,
    rest: float = 0.0,
) -> None:
    for _ in monitor(batches):
        with monitor.transfer():
            clock.sleep(transfer)
        with monitor.step():
            clock.sleep(step)
        clock.sleep(rest)


def is_recorded() -> bool:
    """Return whether torch's profiler runs, which torch says nowhere else."""
    return bool(torch.autograd._profiler_enabled())
