"""FLOPs a second that a device can make at most: what a model's FLOPs are compared with."""

from __future__ import annotations

import re
import time
from functools import cache
from typing import NamedTuple

import torch


class Peak(NamedTuple):
    """TFLOPs a second of dense products.

    Attributes:
        half: in bfloat16 or float16 on tensor cores, sums in float32.
        tf32: in float32 with rounded factors, on tensor cores.
        single: in float32.
    """

    half: float
    tf32: float
    single: float


# From NVIDIA's data sheets of each product, without sparsity (where a sheet has sparse figures
# alone, half of them). A GPU's name has all words of a line; the first such line counts.
PEAKS: dict[str, Peak] = {
    "B200": Peak(2250, 1125, 75),
    "GH200": Peak(989.4, 494.7, 67),
    "H200 NVL": Peak(835.5, 417.7, 60),
    "H200": Peak(989.4, 494.7, 67),
    "H100 PCIe": Peak(756, 378, 51),
    "H100 NVL": Peak(835.5, 417.7, 60),
    "H100": Peak(989.4, 494.7, 67),
    "A100": Peak(312, 156, 19.5),
    "A40": Peak(149.7, 74.8, 37.4),
    "A10": Peak(125, 62.5, 31.2),
    "L40S": Peak(362, 183, 91.6),
    "L40": Peak(181, 90.5, 90.5),
    "L4": Peak(121, 60, 30.3),
    "RTX 4090": Peak(165.2, 82.6, 82.6),
    "RTX 3090": Peak(71, 35.6, 35.6),
    "V100": Peak(125, 15.7, 15.7),
    "T4": Peak(65, 8.1, 8.1),
}


def peak_flops(device: torch.device, dtype: torch.dtype, *, tf32: bool = False) -> float | None:
    """Return the FLOPs a second of a device: of a data sheet, or measured on the CPU.

    Args:
        device: of the model.
        dtype: of matrix products.
        tf32: whether float32 products may round their factors.

    Returns:
        None for a GPU that the table does not have.
    """
    if device.type != "cuda":
        return measured_peak(dtype)
    return peak_of(torch.cuda.get_device_name(device), dtype, tf32=tf32)


def peak_of(name: str, dtype: torch.dtype, *, tf32: bool = False) -> float | None:
    """Return the FLOPs a second of a GPU by its name."""
    words = set(re.split(r"[\s\-]+", name.lower()))
    for known, peak in PEAKS.items():
        if set(known.lower().split()) <= words:
            single = peak.tf32 if tf32 else peak.single
            return 1e12 * (single if dtype == torch.float32 else peak.half)
    return None


@cache
def measured_peak(dtype: torch.dtype, size: int = 1024, rounds: int = 5) -> float:
    """FLOPs a second of square products on the CPU: the best of some rounds."""
    left, right = (torch.ones(size, size, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(rounds):
        begun = time.perf_counter()
        torch.mm(left, right)
        best = min(best, time.perf_counter() - begun)
    return 2 * size**3 / best
