"""One step from the events of torch's profiler: exchange with other ranks, waits, gaps, operators.

The profiler sees what Python cannot: the collectives that DDP and FSDP start from C++, and when the
kernels of a GPU run.

The time of an operator is its own, without that of operators inside of it; one of matrices, such as
`aten::linear`, stands for all inside of it. On a GPU it is the time of the kernels. Views and
allocations are left out.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from datapipe.diagnosis.step_figures import Operator

Interval = tuple[int, int]
"""Start and end, in nanoseconds."""

# Backends name their collectives `gloo:all_reduce`, NCCL its kernels `ncclDevKernel_AllReduce_...`.
_BACKENDS = ("gloo:", "mpi:", "ucc:", "xccl:", "hccl:")
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_RUNTIMES = ("cuda", "hip")

_ITEM_SIZES = {
    **dict.fromkeys(("double", "long int", "long"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("short", "c10::BFloat16", "c10::Half"), 2),
    **dict.fromkeys(("bool", "unsigned char", "signed char"), 1),
}
_SHORT = {"c10::BFloat16": "bfloat16", "c10::Half": "float16", "float": "float32"}
# Operators of matrices, by the arguments whose shapes tell the FLOPs.
_PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}
_ATTENTION = ("_scaled_dot_product_", "_flash_attention_", "_efficient_attention_")
_NO_WORK = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"),
        *("view", "_unsafe_view", "reshape", "as_strided", "expand", "expand_as", "t", "detach"),
        *("transpose", "permute", "unsqueeze", "squeeze", "select", "slice", "narrow", "split"),
        *("chunk", "unbind", "alias", "flatten", "unflatten", "view_as", "result_type", "set_"),
        *("resolve_conj", "resolve_neg", "lift_fresh", "detach_", "to", "_to_copy", "contiguous"),
        *("item", "_local_scalar_dense", "is_nonzero", "split_with_sizes", "numpy_T", "movedim"),
    )
)
_NO_OPERATORS = frozenset({"autograd", "torch", "c10d", "_c10d_functional"})
_OF_FUNCTIONS = 0  # scope of operators; ranges, such as FSDP's, which wait too, have another
_COMPILED = ("## Call CompiledFxGraph", "Torch-Compiled Region", "triton_", "CompiledFunction")


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
    launched: Counter[int] = Counter()
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
                launched[event.linked_correlation_id()] += span[1] - span[0]
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


@dataclass(slots=True)
class Call:
    """Call of an operator on the CPU, in nanoseconds of the profiler's clock."""

    thread: int
    start: int
    end: int
    name: str
    flops: int
    raw: Any  # Kineto's own event, with shapes and dtypes
    inside: int = 0  # ns of the calls directly inside
    launched: int = 0  # ns of its kernels

    @property
    def whole(self) -> bool:
        """True if it stands for all calls inside of it."""
        return bool(self.flops) or _stands_for_all(self.name)


def operators_of(
    calls: Iterable[Call], kernels: Mapping[int, int]
) -> tuple[list[Operator], list[tuple[int, int]]]:
    """Return the operators that compute, merged by name and shapes, and when they ran.

    `kernels` has ns of the kernels that a call launched, by its correlation; empty without a GPU.
    """
    took: defaultdict[tuple[str, str, int, int], list[int]] = defaultdict(list)
    intervals = []
    for call in _outermost(calls, kernels):
        intervals.append((call.start, call.end))
        own = call.end - call.start - (0 if call.whole else call.inside)
        dtype, flops, moved = _work(call)
        if not call.whole and own < call.inside:
            moved = 0  # those inside of it have moved them
        took[call.name, dtype, flops, moved].append(call.launched if kernels else own)
    operators = []
    for (name, dtype, flops, moved), times in took.items():
        number, seconds = len(times), sum(times) / 1e9
        sums = {"flops": flops * number, "bytes": moved * number, "calls": number}
        operators.append(Operator(name=name, dtype=dtype, seconds=seconds, **sums))
    return operators, intervals


def _outermost(calls: Iterable[Call], kernels: Mapping[int, int]) -> Iterable[Call]:
    """Return the calls in no other that stands for them, with what is inside of each."""
    found: list[Call] = []
    around: list[Call] = []
    for call in sorted(calls, key=lambda call: (call.thread, call.start, -call.end)):
        while around and (around[-1].thread != call.thread or call.start >= around[-1].end):
            around.pop()
        call.launched = kernels.get(call.raw.correlation_id(), 0)
        if around and around[-1].whole:
            around[-1].launched += call.launched
            continue
        if around:
            around[-1].inside += call.end - call.start
        around.append(call)
        found.append(call)
    return found


@cache
def computes(name: str, scope: int) -> bool:
    """Check whether events of this name are operators that compute."""
    if name.startswith(_COMPILED):
        return True
    space, _, rest = name.partition("::")
    # DDP's ranges have names such as `torch.distributed.ddp.reducer::copy_bucket_to_grad`.
    operator = bool(rest) and space.isidentifier() and space not in _NO_OPERATORS
    return operator and scope == _OF_FUNCTIONS and name not in _NO_WORK


@cache
def _stands_for_all(name: str) -> bool:
    """Check whether an operator stands for those inside of it: of matrices, or compiled."""
    short = name.removeprefix("aten::")
    return (
        short in _PRODUCTS
        or short in ("linear", "convolution", "convolution_backward")
        or short.startswith(_ATTENTION)
        or name.startswith(_COMPILED)
    )


def _work(call: Call) -> tuple[str, int, int]:
    shapes, dtypes = call.raw.shapes(), call.raw.dtypes()
    sizes = [
        math.prod(shape) * _ITEM_SIZES[kind]
        for shape, kind in zip(shapes, dtypes, strict=False)
        if kind in _ITEM_SIZES
    ]
    dtype = next((kind for kind in dtypes if kind in _ITEM_SIZES), "")
    try:
        flops = call.flops or _flops(call.name.removeprefix("aten::"), shapes)
    except (IndexError, TypeError, ValueError):  # shapes of another version of torch
        flops = 0
    # The result is taken to be as large as the largest argument.
    return _SHORT.get(dtype, dtype), flops, sum(sizes) + max(sizes, default=0)


def _flops(short: str, shapes: Sequence[Sequence[int]]) -> int:
    if short in _PRODUCTS:
        left, right = (shapes[index] for index in _PRODUCTS[short])
        return 2 * math.prod(left) * right[-1]
    if short == "linear":
        return 2 * math.prod(shapes[0]) * shapes[1][0]
    if short == "convolution_backward":
        return 4 * math.prod(shapes[0]) * math.prod(shapes[2][1:])
    if short.startswith(_ATTENTION):
        backward = "backward" in short
        query, key, value = shapes[1:4] if backward else shapes[:3]
        # Two products forward; five backward, as the scores are computed again.
        forward = 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
        return forward * 5 // 2 if backward else forward
    return 0
