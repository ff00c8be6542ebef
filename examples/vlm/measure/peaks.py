"""FLOPs a second that a device can make at most: what a model's FLOPs are compared with."""

import logging

import torch

from datapipe.monitor.peaks import cpu_peaks, gpu_peaks

logger = logging.getLogger(__name__)


class Peak:
    """FLOPs a second of a device: given, of the monitor's table of GPUs, or measured on the CPU.

    Args:
        device: of the model.
        dtype: of matrix products.
        tf32: whether float32 products may round their factors.
        given: by the user.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        tf32: bool = False,
        given: float | None = None,
    ) -> None:
        self._dtype = str(dtype).removeprefix("torch.")
        self._measures = given is None and device.type == "cpu"
        self._known, self._refused = given, False
        if given is None and device.type == "cuda":
            peaks = gpu_peaks(torch.cuda.get_device_name(device), tf32=tf32)
            self._known = None if peaks is None else peaks.rate(self._dtype)

    def share(self, flops: float) -> float | None:
        """Return the share that these FLOPs a second are of the peak; None if it is not known."""
        if self._measures:
            peaks = cpu_peaks(torch.get_num_threads(), reached={self._dtype: flops})
            self._known = max(flops, peaks.rate(self._dtype))
        if self._known is None or flops <= self._known:
            return self._known and flops / self._known
        if not self._refused:
            self._refused = True
            logger.warning(
                "steps make %.3g FLOP/s, more than the peak of %.3g, so no MFU is shown; give the "
                "peak of a device as --peak-flops",
                flops,
                self._known,
            )
        return None
