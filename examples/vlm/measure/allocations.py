"""Allocations of tensors on the CPU, as torch's profiler notes them."""

import os
from typing import Any, NamedTuple, Self

from torch.profiler import ProfilerActivity, profile, record_function

_MARK = "memory:"


class Level(NamedTuple):
    """Bytes of tensors at a mark, and at most since the mark before; from 0 at the start."""

    now: int
    most: int


class Allocations:
    """Profiler of what this thread allocates: the CPU's allocator itself keeps no counts.

    The figures are exact. What is allocated and freed takes some percent longer.
    """

    def __init__(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else torch 2.13 prints when it begins
        cpu = [ProfilerActivity.CPU]
        self._trace = profile(activities=cpu, profile_memory=True, acc_events=False)

    def __enter__(self) -> Self:
        self._trace.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._trace.stop()

    def mark(self, name: str) -> None:
        """Note that this point was reached."""
        with record_function(_MARK + name):
            pass

    def levels(self) -> dict[str, Level]:
        """Return the bytes at each mark, the last one of a name, and at the end as ""."""
        assert self._trace.profiler is not None
        assert self._trace.profiler.kineto_results is not None
        events: list[Any] = self._trace.profiler.kineto_results.events()
        events.sort(key=lambda event: event.start_ns())
        found: dict[str, Level] = {}
        now = most = 0
        for event in events:
            if event.name().startswith(_MARK):
                found[event.name().removeprefix(_MARK)] = Level(now, most)
                most = now
            elif event.name() == "[memory]":
                now += event.nbytes()
                most = max(most, now)
        return found | {"": Level(now, most)}
