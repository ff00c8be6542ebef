"""Figures of single steps: the time that memory and arithmetic explain, and other ranks compared.

The roofline is that of Williams, Waterman and Patterson ("Roofline: an insightful visual
performance model for multicore architectures", CACM 52(4), 2009): an operator takes at least as
long as moving its bytes at the machine's bandwidth, and as its FLOPs at the machine's rate. The
longer of the two limits it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple


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


class RankStep(NamedTuple):
    """A step on one rank, in seconds."""

    seconds: float
    waited: float  # for the batch
    exchange: float  # not hidden behind compute, waiting for other ranks included


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """Steps of several ranks: medians over the steps. Shares of a step's time are 0 to 1."""

    exchange: float  # exchange itself
    waiting: float  # this rank waits for a slower one
    holding: float  # the others wait for this rank, on average
    slowest: int | None  # rank that is the slowest in most steps; None if none is
    # seconds a step by which the slowest rank is later than this one, or this one than the others
    late: float
    for_data: float  # part of `late` in which the slowest rank waits for its batch, 0 to 1


def compare_ranks(steps: Mapping[int, Mapping[int, RankStep]], rank: int) -> RankTimes | None:
    """Compare the same steps on several ranks, as `rank` sees them; None without others."""
    shared = [step for step in steps.values() if rank in step and len(step) > 1]
    if not shared:
        return None
    slowest = [min(step, key=lambda r: step[r].exchange) for step in shared]
    first, times = Counter(slowest).most_common(1)[0]
    named = first if 2 * times > len(shared) else None
    exchange, waiting, holding, late, data = [], [], [], [], []
    for step, last in zip(shared, slowest, strict=True):
        own, theirs = step[rank], step[last]
        exchange.append(theirs.exchange / own.seconds)
        waiting.append((own.exchange - theirs.exchange) / own.seconds)
        others = [each for r, each in step.items() if r != last]
        held = median(each.exchange for each in others) - theirs.exchange
        holding.append(held / own.seconds if last == rank else 0.0)
        late.append(held if last == rank else own.exchange - theirs.exchange)
        beside = median(each.waited for each in others) if last == rank else own.waited
        data.append(theirs.waited - beside)
    lateness = median(late)
    return RankTimes(
        exchange=median(exchange),
        waiting=median(waiting),
        holding=median(holding),
        slowest=named,
        late=lateness,
        for_data=min(1.0, max(0.0, median(data) / lateness)) if lateness > 0 else 0.0,
    )
