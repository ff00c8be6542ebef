"""FLOPs a second that a device can make at most: what a model's FLOPs are compared with."""

from __future__ import annotations

import logging
import time

import torch

from datapipe.monitor.peaks import gpu_peaks

logger = logging.getLogger(__name__)

_SIDE, _ROUNDS = 768, 5  # of the matrices that are multiplied on a CPU


class Peak:
    """FLOPs a second of a device: given, of a data sheet, or measured on the CPU.

    A measurement is too low where other processes use the CPU meanwhile. So it is repeated when
    steps make more than was measured, and no share is above 1.

    Args:
        device: of the model.
        dtype: of matrix products.
        tf32: whether float32 products may round their factors.
        given: by the user; None looks the GPU up, or measures the CPU.

    Attributes:
        flops: a second; None for a GPU that the monitor's table does not have.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        tf32: bool = False,
        given: float | None = None,
    ) -> None:
        self._dtype = dtype
        self._measures = given is None and device.type == "cpu"
        self._refused = False
        self.flops = given
        if self._measures:
            self.flops = measure(dtype)
        elif given is None:
            peaks = gpu_peaks(torch.cuda.get_device_name(device), tf32=tf32)
            self.flops = None if peaks is None else peaks.rate(str(dtype).removeprefix("torch."))

    def share(self, flops: float) -> float | None:
        """Return the share that these FLOPs a second are of the peak; None if it is not known."""
        if self.flops is None:
            return None
        if self._measures and flops > self.flops:
            self.flops = max(self.flops, measure(self._dtype))
        if flops <= self.flops:
            return flops / self.flops
        if not self._refused:
            self._refused = True
            logger.warning(
                "steps make %.3g FLOP/s, more than the peak of %.3g, so no MFU is shown; give the "
                "peak of a device as --peak-flops",
                flops,
                self.flops,
            )
        return None


def measure(dtype: torch.dtype) -> float:
    """Measure the FLOPs a second of the CPU in products of matrices; the fastest counts."""
    matrix = torch.ones(_SIDE, _SIDE, dtype=dtype)
    out = torch.empty_like(matrix)
    took = []
    for _ in range(1 + _ROUNDS):
        begun = time.perf_counter()
        torch.mm(matrix, matrix, out=out)
        took.append(time.perf_counter() - begun)
    return 2 * _SIDE**3 / min(took[1:])
