"""Peaks of this machine: measured on the CPU, from a table for GPUs."""

from __future__ import annotations

import re
import timeit
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from datapipe.diagnosis.step_figures import Peaks

_SIDE = 768  # of the matrices that are multiplied
_COPIED = 64 << 20  # bytes: beyond most caches
_ROUNDS = 5
_MEASURED: dict[int, Peaks] = {}  # by number of threads


# TFLOP/s of bfloat16 and float16, of float32 by TF32 and without, and GB/s of memory: from NVIDIA's
# data sheets, dense, so half of the figures where a sheet has sparse ones alone. A GPU's name has
# all words of a line; the first such line counts.
GPUS: dict[str, tuple[float, float, float, float]] = {
    "B200": (2250, 1125, 75, 8000),
    "GH200": (989.4, 494.7, 67, 4000),
    "H200 NVL": (835.5, 417.7, 60, 4800),
    "H200": (989.4, 494.7, 67, 4800),
    "H100 PCIe": (756, 378, 51, 2000),
    "H100 NVL": (835.5, 417.7, 60, 3900),
    "H100": (989.4, 494.7, 67, 3350),
    "A100 80GB": (312, 156, 19.5, 2039),
    "A100": (312, 156, 19.5, 1555),
    "A40": (149.7, 74.8, 37.4, 696),
    "A10G": (70, 35, 35, 600),
    "A10": (125, 62.5, 31.2, 600),
    "L40S": (362, 183, 91.6, 864),
    "L40": (181, 90.5, 90.5, 864),
    "L4": (121, 60, 30.3, 300),
    "RTX 4090": (165.2, 82.6, 82.6, 1008),
    "RTX 3090": (71, 35.6, 35.6, 936),
    "V100": (125, 15.7, 15.7, 900),
    "T4": (65, 8.1, 8.1, 300),
}


def gpu_peaks(name: str, *, tf32: bool = False) -> Peaks | None:
    """Return the peaks of a GPU by its name; None if it is not in the table.

    With `tf32`, float32 products may round their factors.
    """
    words = set(re.split(r"[\s\-]+", name.lower()))
    for model, (half, rounded, single, bandwidth) in GPUS.items():
        if set(model.lower().split()) <= words:
            flops = {"bfloat16": half, "float16": half, "float32": rounded if tf32 else single}
            return Peaks(
                flops={dtype: rate * 1e12 for dtype, rate in flops.items()},
                bandwidth=bandwidth * 1e9,
                source=model,
            )
    return None


def cpu_peaks(threads: int, *, reached: Mapping[str, float] = MappingProxyType({})) -> Peaks:
    """Return the peaks of the CPU with so many threads of torch, measured once.

    That takes about 0.1 s, and several seconds where the CPU has to emulate bfloat16.

    Other work on the machine may be in the way, so they are measured again, and the higher figures
    kept, if a program `reached` more FLOP/s of a dtype.
    """
    peaks = _MEASURED.get(threads) or _measure(threads)
    if any(rate > peaks.rate(dtype) for dtype, rate in reached.items()):
        again = _measure(threads)
        flops = {
            dtype: max(rate, again.rate(dtype), reached.get(dtype, 0.0))
            for dtype, rate in peaks.flops.items()
        }
        peaks = replace(peaks, flops=flops, bandwidth=max(peaks.bandwidth, again.bandwidth))
    _MEASURED[threads] = peaks
    return peaks


def _measure(threads: int) -> Peaks:
    import torch

    def product(dtype: Any) -> float:
        matrix = torch.ones(_SIDE, _SIDE, dtype=dtype)
        out = torch.empty_like(matrix)
        return 2 * _SIDE**3 / _fastest(lambda: torch.mm(matrix, matrix, out=out))

    source = torch.ones(_COPIED, dtype=torch.uint8)
    target = torch.empty_like(source)
    with torch.inference_mode():
        return Peaks(
            flops={"float32": product(torch.float32), "bfloat16": product(torch.bfloat16)},
            bandwidth=2 * _COPIED / _fastest(lambda: target.copy_(source)),
            source=f"measured with {threads} threads",
        )


def _fastest(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest round, after one that is not timed."""
    work()
    return min(timeit.repeat(work, number=1, repeat=_ROUNDS))
