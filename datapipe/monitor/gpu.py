"""Utilization and memory of the GPU, by NVML, beside the training loop.

A thread queries NVML a few times a second. It answers with the share of its last sampling period
(1/6 to 1 s) in which a kernel ran, however well the kernel used the GPU, and does not wait.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

logger = logging.getLogger(__name__)

_EVERY = 0.25  # seconds


class GpuSample(NamedTuple):
    """State of a GPU: busy from 0 to 1, bytes of memory taken and in all."""

    busy: float
    memory: int
    total: int


class Gpu(Protocol):
    """Interface of a GPU that can be queried."""

    name: str

    def sample(self) -> GpuSample:
        """Query its state; may raise any error of its driver."""


@dataclass(frozen=True, kw_only=True)
class GpuUsage:
    """A GPU over a stretch of training."""

    name: str  # its model
    samples: int  # queries
    utilization: float  # mean share of time in which a kernel ran, 0 to 1
    memory: int  # most bytes taken, by all processes
    total: int  # bytes of the GPU


class _Shared:
    """State that the thread shares with its sampler, without a reference to it."""

    def __init__(self, name: str) -> None:
        self.usage = GpuUsage(name=name, samples=0, utilization=0.0, memory=0, total=0)
        self.counts = False  # whether the current turn counts
        self.stop = threading.Event()


class GpuSampler:
    """Sampler of a GPU, in a thread that ends with this object.

    Args:
        gpu: to query.
        every: seconds between queries.
    """

    def __init__(self, gpu: Gpu, every: float = _EVERY) -> None:
        self._shared = _Shared(gpu.name)
        self._thread = threading.Thread(
            target=_sample, args=(gpu, self._shared, every), name="datapipe-gpu", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, self._shared.stop.set)

    def count(self, counts: bool) -> None:
        """Include or exclude the time from now on."""
        self._shared.counts = counts

    def usage(self) -> GpuUsage | None:
        """Return the usage so far; None before the first sample."""
        usage = self._shared.usage
        return usage if usage.samples else None

    def close(self) -> None:
        """End the thread."""
        self._shared.stop.set()
        self._thread.join()


def _sample(gpu: Gpu, shared: _Shared, every: float) -> None:
    while not shared.stop.wait(every):
        if not shared.counts:
            continue
        try:
            sample = gpu.sample()
        except Exception as error:
            logger.warning("the GPU's utilization is no longer known: %s", error)
            return
        before = shared.usage
        samples = before.samples + 1
        shared.usage = GpuUsage(
            name=before.name,
            samples=samples,
            utilization=before.utilization + (sample.busy - before.utilization) / samples,
            memory=max(before.memory, sample.memory),
            total=sample.total,
        )


class _Nvml:
    """A GPU of NVIDIA's management library."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        name = nvml.nvmlDeviceGetName(handle)
        self.name = name.decode() if isinstance(name, bytes) else str(name)

    def sample(self) -> GpuSample:
        busy = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return GpuSample(float(busy), int(memory.used), int(memory.total))


def find_gpu(load: Callable[[str], Any] = importlib.import_module) -> Gpu | None:
    """Find the GPU that this process uses; None, with a line in the log, if it cannot be queried.

    A process that does not use a GPU yet has none.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        _log_once(logging.INFO, "this process uses no GPU, so the monitor says nothing of one")
        return None
    try:
        nvml = load("pynvml")
    except ImportError:
        _log_once(
            logging.WARNING,
            "how busy the GPU is stays unknown, as pynvml is missing: pip install 'datapipe[gpu]'",
        )
        return None
    try:
        nvml.nvmlInit()
        about = torch.cuda.get_device_properties(torch.cuda.current_device())
        return _Nvml(nvml, _handle(nvml, about))
    except Exception as error:  # NVML's own kind, or fields that an older torch does not have
        _log_once(logging.WARNING, f"how busy the GPU is stays unknown: {error}")
        return None


@cache
def _log_once(level: int, message: str) -> None:
    logger.log(level, "%s", message)


def _handle(nvml: Any, about: Any) -> Any:
    """Find NVML's handle of a device of torch; their numbers differ if some devices are hidden."""
    if hasattr(about, "pci_domain_id"):
        address = f"{about.pci_domain_id:08x}:{about.pci_bus_id:02x}:{about.pci_device_id:02x}.0"
        return nvml.nvmlDeviceGetHandleByPciBusId(address.encode())
    return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{about.uuid}".encode())
