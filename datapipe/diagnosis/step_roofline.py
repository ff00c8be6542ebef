"""Roofline of a step: the time that memory and arithmetic explain.

After Williams, Waterman and Patterson ("Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009): an operator takes at least as long as moving its bytes
at the machine's bandwidth, and as its FLOPs at the machine's rate. The longer of the two limits it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Operator:
    """All calls of an operator with equal shapes in one step."""

    name: str
    dtype: str  # of its first tensor, such as "float32"
    seconds: float
    flops: int  # 0 if it is no product of matrices
    bytes: int  # of its arguments and its result
    calls: int = 1


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Most that a machine can do."""

    flops: Mapping[str, float]  # FLOP/s by dtype; has "float32"
    bandwidth: float  # bytes/s of memory
    source: str  # "measured", or the model of a GPU

    def rate(self, dtype: str) -> float:
        return self.flops.get(dtype, self.flops["float32"])


@dataclass(frozen=True, kw_only=True)
class StepRoofline:
    """A step on the roofline of its machine. Shares are fractions of the step's time, 0 to 1."""

    memory: float  # share that operators limited by memory would take at the peaks
    arithmetic: float  # share that operators limited by arithmetic would take
    flops: int  # of the step
    bytes: int
    at_peak: float  # seconds that the FLOPs take at the peak
    moved: float  # seconds that the bytes take at the peak
    seconds: float  # of the step
    longest: str = ""  # operator limited by memory that takes the most time


def fastest(operators: Sequence[Operator]) -> dict[str, float]:
    """Return the most FLOP/s that an operator of each dtype reached."""
    rates: dict[str, float] = {}
    for operator in operators:
        if operator.flops and operator.seconds:
            rate = operator.flops / operator.seconds
            rates[operator.dtype] = max(rate, rates.get(operator.dtype, 0.0))
    return rates


def place(operators: Sequence[Operator], peaks: Peaks, seconds: float) -> StepRoofline:
    """Place the operators of a step of so many seconds on a roofline.

    No operator takes longer at the peaks than it took: bytes in caches move faster.
    """
    memory = arithmetic = at_peak = moved = 0.0
    times: defaultdict[str, float] = defaultdict(float)  # of operators limited by memory
    for operator in operators:
        computing = min(operator.flops / peaks.rate(operator.dtype), operator.seconds)
        moving = min(operator.bytes / peaks.bandwidth, operator.seconds)
        at_peak, moved = at_peak + computing, moved + moving
        if moving > computing:
            memory += moving
            times[operator.name] += operator.seconds
        else:
            arithmetic += computing
    # Operators of several threads may take longer together than their step.
    scale = 1 / max(seconds, memory + arithmetic)
    return StepRoofline(
        memory=memory * scale,
        arithmetic=arithmetic * scale,
        flops=sum(operator.flops for operator in operators),
        bytes=sum(operator.bytes for operator in operators),
        at_peak=min(at_peak, seconds),
        moved=min(moved, seconds),
        seconds=seconds,
        longest=max(times, key=lambda name: times[name], default=""),
    )
