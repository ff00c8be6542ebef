"""Peaks of this machine: measured on the CPU, from a table for GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

from datapipe.diagnosis.step_roofline import Peaks

_SIDE = 768  # of the matrices that are multiplied
_COPIED = 64 << 20  # bytes: beyond most caches
_ROUNDS = 5

# Dense, without sparsity: TFLOP/s of bfloat16 and float16, of float32 by TF32, GB/s of memory. From
# the vendors' data sheets; the longest name that the device's begins with counts.
_GPUS = {
    "NVIDIA B200": (2250, 1125, 8000),
    "NVIDIA H200": (989, 494, 4800),
    "NVIDIA H100 PCIe": (756, 378, 2000),
    "NVIDIA H100": (989, 494, 3350),
    "NVIDIA A100-SXM4-80GB": (312, 156, 2039),
    "NVIDIA A100": (312, 156, 1555),
    "NVIDIA A10G": (70, 35, 600),
    "NVIDIA A10": (125, 62, 600),
    "NVIDIA L40S": (362, 183, 864),
    "NVIDIA L4": (121, 60, 300),
    "NVIDIA GeForce RTX 4090": (165, 83, 1008),
    "Tesla V100": (125, 16, 900),
    "Tesla T4": (65, 8, 300),
}


def gpu_peaks(name: str) -> Peaks | None:
    """Return the peaks of a GPU by its name; None if it is not in the table."""
    known = [key for key in _GPUS if name.startswith(key)]
    if not known:
        return None
    model = max(known, key=len)
    half, single, bandwidth = _GPUS[model]
    return Peaks(
        flops={"bfloat16": half * 1e12, "float16": half * 1e12, "float32": single * 1e12},
        bandwidth=bandwidth * 1e9,
        source=model,
    )


@cache
def cpu_peaks(threads: int) -> Peaks:
    """Measure the peaks of the CPU with so many threads of torch; takes about 0.1 s, once."""
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
    took = []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        work()
        took.append(time.perf_counter() - begun)
    return min(took)
