"""Utilization and memory of the GPU, beside the training loop.

A thread asks torch a few times a second, which asks NVML. The answer is the share of its last
sampling period (1/6 to 1 s) in which a kernel ran, however well the kernel used the GPU.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, replace
from functools import cache

from datapipe.extras import install_command
from datapipe.profile.measure.usage import Sampler

logger = logging.getLogger(__name__)

_EVERY = 0.25  # seconds


class Gpu:
    """The current GPU of torch."""

    def __init__(self) -> None:
        self._cuda = sys.modules["torch"].cuda
        self._device = self._cuda.current_device()
        self.name = str(self._cuda.get_device_name(self._device))

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
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        _log_once(logging.INFO, "this process uses no GPU, so the monitor does not report one")
        return None
    try:
        gpu = Gpu()
        gpu.sample()
    except Exception as error:  # of the driver, of any kind
        why = str(error)
        if isinstance(error, ImportError):
            why = f"pynvml is missing: {install_command('gpu')}"
        _log_once(logging.WARNING, f"GPU utilization is unknown: {why}")
        return None
    return gpu


@cache
def _log_once(level: int, message: str) -> None:
    logger.log(level, "%s", message)
