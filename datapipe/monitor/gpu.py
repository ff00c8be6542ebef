"""The GPU of a training loop: step times by its own clock, utilization and memory by NVML.

Work on a GPU is queued, so the host's clock tells when it was queued and not when it was done.
Marks are queued with it and read once the device has passed them. Between steps the device is idle:
only this waiting costs time.

Utilization is asked for in a thread, a few times a second. The answer is the share of NVML's last
sampling period (1/6 to 1 s) in which a kernel ran, however well the kernel used the GPU.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from datapipe.extras import install_command
from datapipe.monitor.durations import Durations
from datapipe.monitor.loop_timer import ENTER, TurnParts
from datapipe.profile.measure.usage import Sampler

logger = logging.getLogger(__name__)
_log_once = cache(logger.log)

_EVERY = 0.25  # seconds
_MOST_PENDING = 256  # turns that the host may be ahead


def used_cuda() -> Any:
    """Return `torch.cuda`; None if this process does not use a GPU yet."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


class DeviceTimes:
    """Sums of the device's times of a loop. For the thread that runs it.

    A transfer inside of a step is no part of it, and one between steps is no idle time, which is
    that from the end of the turn before.
    """

    def __init__(self, cuda: Any) -> None:
        self.steps, self.transfers, self.idle = Durations(), Durations(), Durations()
        self._cuda = cuda  # `torch.cuda`
        self._free: list[Any] = []  # marks to be used again
        # event, part and mark, of each turn
        self._pending: deque[list[tuple[int, int, Any]]] = deque()
        self._turn: list[tuple[int, int, Any]] = []
        self._previous: Any = None  # last mark that was read

    def note(self, event: int, part: int) -> None:
        """Begin a step or a transfer (`ENTER`), or end it (`LEAVE`): all of its work is queued."""
        if self._cuda.is_current_stream_capturing():  # nothing may be queued beside it
            return
        mark = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
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


class Gpu:
    """The current GPU of torch."""

    def __init__(self, cuda: Any) -> None:
        self._cuda, self._device = cuda, cuda.current_device()
        self.name = str(cuda.get_device_name(self._device))

    def sample(self) -> tuple[float, int, int]:
        """Query busy from 0 to 1, bytes of memory taken and in all; may raise any error."""
        free, total = self._cuda.mem_get_info(self._device)
        return self._cuda.utilization(self._device) / 100, total - free, total


@dataclass(frozen=True, kw_only=True)
class GpuUsage:
    """A GPU over a stretch of training."""

    name: str  # its model
    samples: int = 0  # queries
    utilization: float = 0.0  # mean share of time in which a kernel ran, 0 to 1
    memory: int = 0  # most bytes taken, by all processes
    total: int = 0  # bytes of the GPU


class GpuSampler(Sampler):
    def __init__(self, gpu: Gpu, every: float = _EVERY) -> None:
        super().__init__("datapipe-gpu")
        self.usage: GpuUsage | None = None  # so far; None before the first sample
        self.counts = False  # whether the current turn counts
        self._gpu, self._every = gpu, every

    def run(self) -> None:
        while not self.ended.wait(self._every):
            if not self.counts:
                continue
            try:
                busy, memory, total = self._gpu.sample()
            except Exception as error:
                logger.warning("the GPU's utilization is no longer known: %s", error)
                return
            usage = self.usage or GpuUsage(name=self._gpu.name)
            samples = usage.samples + 1
            self.usage = replace(
                usage,
                samples=samples,
                utilization=usage.utilization + (busy - usage.utilization) / samples,
                memory=max(usage.memory, memory),
                total=total,
            )


def find_gpu() -> Gpu | None:
    """Find the GPU that this process uses; None, with a line in the log, if it cannot be queried.

    A process that does not use a GPU yet has none.
    """
    cuda = used_cuda()
    if cuda is None:
        _log_once(logging.INFO, "this process uses no GPU, so the monitor does not report one")
        return None
    try:
        gpu = Gpu(cuda)
        gpu.sample()
    except Exception as error:  # of the driver, of any kind
        why = str(error)
        if isinstance(error, ImportError):
            why = f"pynvml is missing: {install_command('gpu')}"
        _log_once(logging.WARNING, f"GPU utilization is unknown: {why}")
        return None
    return gpu
