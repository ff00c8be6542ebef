"""Step time on the device, without waiting for it.

Work on a GPU is queued, so the host's clock tells when it was queued and not when it was done.
Marks are queued beside it and read once the device has passed them. From the end of one step to the
start of the next the device is idle: only this waiting costs time.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from datapipe.monitor.durations import Durations
from datapipe.monitor.loop_timer import TRANSFER

_MOST_PENDING = 256  # steps that the host may be ahead


class DeviceMark(Protocol):
    """A point in the device's work; `torch.cuda.Event` is one."""

    def record(self) -> None:
        """Queue it behind the work so far."""

    def query(self) -> bool:
        """Check whether the device has passed it, without waiting."""

    def elapsed_time(self, later: Any) -> float:
        """Return milliseconds up to a later mark; the device has passed both."""


class Device(Protocol):
    """Factory of marks."""

    def mark(self) -> DeviceMark: ...

    def recording(self) -> bool:
        """Check whether work is being captured, so that nothing may be queued beside it."""


class Cuda:
    """The current stream of torch's current device."""

    def __init__(self) -> None:
        import torch

        self._new: Callable[..., DeviceMark] = torch.cuda.Event
        self._capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing

    def mark(self) -> DeviceMark:
        return self._new(enable_timing=True)

    def recording(self) -> bool:
        return self._capturing()


def current_device() -> Device | None:
    """Return the GPU; None if this process does not use one yet."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return Cuda()


Span = tuple[DeviceMark, DeviceMark]


@dataclass(slots=True)
class _MarkedStep:
    """Queued marks of a step and of the transfers around it."""

    previous: DeviceMark | None  # end of the step before
    between: list[Span]  # transfers after that
    start: DeviceMark
    inside: list[Span]
    end: DeviceMark

    def marks(self) -> list[DeviceMark]:
        """Return the marks that are free once the step was read."""
        spans = [mark for span in (*self.between, *self.inside) for mark in span]
        return [*([] if self.previous is None else [self.previous]), self.start, *spans]


class DeviceTimes:
    """Sums of the device's times of a loop. For the thread that runs it.

    A transfer inside of a step is no part of it, and one between steps is no idle time.

    Attributes:
        steps, transfers: on the device, each.
        idle: between the end of a step and the start of the next.
        turns: that count, some of which may not have been read yet.
    """

    def __init__(self, device: Device) -> None:
        self.steps = Durations()
        self.transfers = Durations()
        self.idle = Durations()
        self.turns = 0
        self._device = device
        self._free: list[DeviceMark] = []
        self._pending: deque[_MarkedStep] = deque()
        self._turn: list[_MarkedStep] = []
        self._previous: DeviceMark | None = None
        self._between: list[Span] = []
        self._inside: list[Span] = []
        self._step: DeviceMark | None = None
        self._transfer: DeviceMark | None = None
        self._depth = 0  # of steps

    def enter(self, part: int) -> None:
        """Begin a step or a transfer; a step inside of another is a part of it."""
        if part == TRANSFER:
            self._transfer = self._queue()
            return
        self._depth += 1
        if self._depth == 1:
            self._inside = []
            self._step = self._queue()

    def leave(self, part: int) -> None:
        """End a step or a transfer: all of its work is queued."""
        if part == TRANSFER:
            begun, self._transfer = self._transfer, None
            end = self._queue()
            if begun is not None and end is not None:
                (self._between if self._step is None else self._inside).append((begun, end))
            return
        self._depth -= 1
        if self._depth:
            self._depth = max(self._depth, 0)
            return
        start, self._step = self._step, None
        end = self._queue()
        if start is None or end is None:
            self._previous = None
            return
        self._turn.append(_MarkedStep(self._previous, self._between, start, self._inside, end))
        self._previous, self._between, self._inside = end, [], []

    def end_turn(self, counts: bool) -> None:
        """End a turn; `counts` tells whether it is in the figures."""
        steps, self._turn, self._depth = self._turn, [], 0
        if counts:
            self.turns += 1
            self._pending += steps
        else:
            # The time up to the next turn is no usual idle time.
            self._previous, self._between = None, []
        while len(self._pending) > _MOST_PENDING:
            self._pending.popleft()

    def read(self) -> None:
        """Add up the steps that the device has passed."""
        while self._pending:
            step = self._pending[0]
            marks = step.marks()
            if not step.end.query() or not all(mark.query() for mark in marks):
                return
            self._pending.popleft()
            self._add(step)
            self._free += marks

    def _add(self, step: _MarkedStep) -> None:
        between = [_elapsed(*span) for span in step.between]
        inside = [_elapsed(*span) for span in step.inside]
        for took in (*between, *inside):
            self.transfers.add(took)
        self.steps.add(_elapsed(step.start, step.end) - sum(inside))
        if step.previous is not None:
            self.idle.add(_elapsed(step.previous, step.start) - sum(between))

    def _queue(self) -> DeviceMark | None:
        if self._device.recording():
            return None
        mark = self._free.pop() if self._free else self._device.mark()
        mark.record()
        return mark


def _elapsed(start: DeviceMark, end: DeviceMark) -> int:
    """Return the nanoseconds between two marks."""
    return round(start.elapsed_time(end) * 1e6)
