"""Roofline of a step: the time that its operators are limited by memory, and by arithmetic.

After Williams, Waterman and Patterson ("Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009): an operator is limited by memory if moving its bytes at
the machine's bandwidth takes longer than its FLOPs at the machine's rate.
"""

from __future__ import annotations

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
        """Return the FLOP/s of a dtype."""
        return self.flops.get(dtype, self.flops["float32"])


@dataclass(frozen=True, kw_only=True)
class StepRoofline:
    """A step on the roofline of its machine. Shares are of the step's time, 0 to 1."""

    memory: float  # share of time in operators that memory limits
    arithmetic: float  # in operators that arithmetic limits
    flops: int  # of the step
    bytes: int
    at_peak: float  # seconds that the FLOPs take at the peak
    moved: float  # seconds that the bytes take at the peak
    seconds: float  # of the step
    longest: str = ""  # operator limited by memory that takes the most time


def place(operators: Sequence[Operator], peaks: Peaks, seconds: float) -> StepRoofline:
    """Place the operators of a step of so many seconds on a roofline."""
    slow = {"memory": 0.0, "arithmetic": 0.0}
    times: dict[str, float] = {}
    at_peak = moved = 0.0
    for operator in operators:
        computing = operator.flops / peaks.rate(operator.dtype)
        moving = operator.bytes / peaks.bandwidth
        at_peak, moved = at_peak + computing, moved + moving
        limit = "arithmetic" if computing > moving else "memory"
        slow[limit] += operator.seconds
        if limit == "memory":
            times[operator.name] = times.get(operator.name, 0.0) + operator.seconds
    return StepRoofline(
        memory=slow["memory"] / seconds,
        arithmetic=slow["arithmetic"] / seconds,
        flops=sum(operator.flops for operator in operators),
        bytes=sum(operator.bytes for operator in operators),
        at_peak=at_peak,
        moved=moved,
        seconds=seconds,
        longest=max(times, key=lambda name: times[name], default=""),
    )
