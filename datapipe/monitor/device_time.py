"""Step time on the device, without waiting for it.

Work on a GPU is queued, so the host's clock tells when it was queued and not when it was done.
Marks are queued with it and read once the device has passed them. Between steps the device is idle:
only this waiting costs time.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from datapipe.monitor.durations import Durations
from datapipe.monitor.loop_timer import ENTER, TurnParts

_MOST_PENDING = 256  # turns that the host may be ahead


class Device:
    """The current stream of torch's current GPU."""

    def mark(self) -> Any:
        return sys.modules["torch"].cuda.Event(enable_timing=True)

    def recording(self) -> bool:
        """Check whether work is being captured, so that nothing may be queued beside it."""
        return bool(sys.modules["torch"].cuda.is_current_stream_capturing())


def current_device() -> Device | None:
    """Return the GPU; None if this process does not use one yet."""
    torch = sys.modules.get("torch")
    return None if torch is None or not torch.cuda.is_initialized() else Device()


class DeviceTimes:
    """Sums of the device's times of a loop. For the thread that runs it.

    A transfer inside of a step is no part of it, and one between steps is no idle time, which is
    that from the end of the turn before.
    """

    def __init__(self, device: Device) -> None:
        self.steps, self.transfers, self.idle = Durations(), Durations(), Durations()
        self._device = device
        self._free: list[Any] = []  # marks, such as `torch.cuda.Event`, to be used again
        # event, part and mark, of each turn
        self._pending: deque[list[tuple[int, int, Any]]] = deque()
        self._turn: list[tuple[int, int, Any]] = []
        self._previous: Any = None  # last mark that was read

    def note(self, event: int, part: int) -> None:
        """Begin a step or a transfer (`ENTER`), or end it (`LEAVE`): all of its work is queued."""
        if self._device.recording():
            return
        mark = self._free.pop() if self._free else self._device.mark()
        mark.record()
        self._turn.append((event, part, mark))

    def end_turn(self, counts: bool) -> None:
        """End a turn; `counts` tells whether it is in the figures."""
        # The time up to the turn after one that does not count is no usual idle time.
        self._pending.append(self._turn if counts else [])
        self._turn = []
        while len(self._pending) > _MOST_PENDING:
            self._pending.popleft()
            self._previous = None

    def read(self) -> None:
        """Add up the turns that the device has passed."""
        while self._pending and all(mark.query() for *_, mark in reversed(self._pending[0])):
            turn = self._pending.popleft()
            if turn:
                self._add(turn)
            else:
                self._previous = None

    def _add(self, turn: list[tuple[int, int, Any]]) -> None:
        parts, before = TurnParts(), self._previous
        for event, part, mark in turn:
            if before is not None:
                parts.spend(round(before.elapsed_time(mark) * 1e6))
                self._free.append(before)
            (parts.enter if event == ENTER else parts.leave)(part)
            before = mark
        for durations, times in zip((self.steps, self.transfers), parts.times, strict=True):
            for took in times:
                durations.add(took)
        if self._previous is not None:
            self.idle.add(parts.rest)
        self._previous = before
