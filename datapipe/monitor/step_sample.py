"""One step from the events of torch's profiler: exchange with other ranks, waits, gaps, operators.

The profiler sees what Python cannot: the collectives that DDP and FSDP start from C++, and when the
kernels of a GPU run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from datapipe.diagnosis.step_roofline import Operator
from datapipe.monitor.operators import Call, computes, operators_of

Interval = tuple[int, int]
"""Start and end, in nanoseconds."""

# Backends name their collectives `gloo:all_reduce`, NCCL its kernels `ncclDevKernel_AllReduce_...`.
_BACKENDS = ("gloo:", "mpi:", "ucc:", "xccl:", "hccl:")
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_RUNTIMES = ("cuda", "hip")


@dataclass(frozen=True, kw_only=True)
class StepSample:
    """A step of the loop that was recorded. Times are in seconds."""

    turn: int  # its number, which is the same on all ranks
    # of the step, waiting for its batch included; on a GPU from its first kernel to its last
    seconds: float
    waited: float  # for the batch, on the host
    exchange: float  # in collectives while nothing else ran
    beside: float  # in collectives while other work ran
    synchronisation: float = 0.0  # in which the host waited for the device
    waiter: str = ""  # operator that did so for the most time; "" without any
    busy: float | None  # in which the GPU had work; None without a GPU
    operators: tuple[Operator, ...]  # that computed


def sample_of(events: Iterable[Any], *, turn: int, took: int, waited: float) -> StepSample:
    """Make a sample of the events of Kineto, of a step of `took` ns after waiting for its batch."""
    host_type = sys.modules["torch"].autograd.DeviceType.CPU
    exchange: list[Interval] = []
    kernels: list[Interval] = []  # of the GPU, collectives left out
    on_gpu: list[Interval] = []
    waits: list[Interval] = []
    called: list[tuple[Interval, str]] = []  # all operators
    launched: dict[int, int] = {}
    host: list[Call] = []
    for event in events:
        name = event.name()
        start = event.start_ns()
        span = start, start + event.duration_ns()
        if event.device_type() != host_type:
            if _kind(event) not in _KERNELS:
                continue
            on_gpu.append(span)
            if "nccl" in name.lower():
                exchange.append(span)
            elif _kind(event) == "kernel":
                kernels.append(span)
                cause = event.linked_correlation_id()
                launched[cause] = launched.get(cause, 0) + span[1] - span[0]
        elif name.startswith(_BACKENDS):
            exchange.append(span)
        elif name.startswith(_RUNTIMES):
            if "Synchronize" in name:
                waits.append(span)
        elif not event.is_async():
            called.append((span, name))
            if computes(name, event.scope()):
                host.append(Call(event.start_thread_id(), *span, name, event.flops(), event))
    operators, computing = operators_of(host, launched)
    took += round(1e9 * waited)
    if kernels:
        computing, took = kernels, max(end for _, end in on_gpu) - min(start for start, _ in on_gpu)
    exposed = min(without(exchange, computing), took)
    # The profiler waits for the device too, after all operators.
    last = max((end for (_, end), _ in called), default=0)
    waits = [span for span in waits if span[0] < last]
    return StepSample(
        turn=turn,
        seconds=max(took, 1) / 1e9,
        waited=waited,
        exchange=exposed / 1e9,
        beside=max(total(union(exchange)) - exposed, 0) / 1e9,
        synchronisation=min(total(union(waits)), took) / 1e9,
        waiter=_waiter(waits, called),
        busy=total(union(on_gpu)) / 1e9 if on_gpu else None,
        operators=tuple(operators),
    )


def _waiter(waits: Iterable[Interval], called: Iterable[tuple[Interval, str]]) -> str:
    """Return the outermost operator around the longest wait."""
    start, end = max(waits, key=lambda span: span[1] - span[0], default=(0, 0))
    around = [
        (span[0], -span[1], name)
        for span, name in called
        if span[0] <= start < end <= span[1] and name.startswith("aten::")
    ]
    return min(around)[2] if around else ""


def _kind(event: Any) -> str:
    """Return the kind of an event of a GPU, which torch says from version 2.12 on."""
    if hasattr(event, "activity_type"):
        return str(event.activity_type())
    if getattr(event, "is_user_annotation", bool)():
        return "gpu_user_annotation"
    name = event.name()
    kinds = {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}
    return next((kind for start, kind in kinds.items() if name.startswith(start)), "kernel")


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return disjoint intervals that cover the same time, in ascending order."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif end > start:
            joined.append((start, end))
    return joined


def total(intervals: Iterable[Interval]) -> int:
    """Add up disjoint intervals."""
    return sum(end - start for start, end in intervals)


def without(intervals: Iterable[Interval], others: Iterable[Interval]) -> int:
    """Return how much time is in the first intervals and not in the others."""
    mine, others = union(intervals), union(others)
    return total(union([*mine, *others])) - total(others)
