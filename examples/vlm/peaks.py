"""FLOPs a second that a device can make at most: what a model's FLOPs are compared with."""

from __future__ import annotations

import torch

from datapipe.monitor.peaks import cpu_peaks, gpu_peaks


def peak_flops(device: torch.device, dtype: torch.dtype, *, tf32: bool = False) -> float | None:
    """Return the FLOPs a second of a device: of a data sheet, or measured on the CPU.

    Args:
        device: of the model.
        dtype: of matrix products.
        tf32: whether float32 products may round their factors.

    Returns:
        None for a GPU that the monitor's table does not have.
    """
    if device.type == "cuda":
        peaks = gpu_peaks(torch.cuda.get_device_name(device), tf32=tf32)
    else:
        peaks = cpu_peaks(torch.get_num_threads())
    return None if peaks is None else peaks.rate(str(dtype).removeprefix("torch."))
