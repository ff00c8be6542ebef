"""Operators of one step, from the events of torch's profiler: their time, FLOPs and bytes.

The time of an operator is its own, without that of operators inside of it; one of matrices, such as
`aten::linear`, stands for all inside of it. On a GPU it is the time of the kernels. Views and
allocations are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from datapipe.diagnosis.step_roofline import Operator
from datapipe.monitor.intervals import Interval

_ITEM_SIZES = {
    "double": 8,
    "long int": 8,
    "long": 8,
    "float": 4,
    "int": 4,
    "short": 2,
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "bool": 1,
    "unsigned char": 1,
    "signed char": 1,
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
_COMPILED = ("## Call CompiledFxGraph", "Torch-Compiled Region", "triton_", "CompiledFunction")


@dataclass(frozen=True, slots=True)
class Event:
    """Event of the profiler on the CPU, in nanoseconds of its clock."""

    name: str
    start: int
    end: int
    thread: int
    identity: int  # correlates it with kernels
    shapes: Sequence[Sequence[int]]
    dtypes: Sequence[str]
    flops: int


@dataclass(slots=True)
class _Call:
    """A call of an operator, while the events inside of it are met."""

    event: Event
    whole: bool  # whether it stands for all inside of it
    inside: int = 0  # ns of the events directly inside
    launched: int = 0  # ns of its kernels


def operators_of(
    events: Iterable[Event], kernels: Mapping[int, int]
) -> tuple[list[Operator], list[Interval]]:
    """Return the operators that compute, merged by name and shapes, and when they ran.

    Args:
        events: of the CPU's threads.
        kernels: ns of the kernels that an event launched, by its `identity`; empty without a GPU.
    """
    found: dict[tuple[Any, ...], Operator] = {}
    intervals = []
    for call in _calls(events, kernels):
        event = call.event
        intervals.append((event.start, event.end))
        own = event.end - event.start - (0 if call.whole else call.inside)
        operator = _operator(event, call.launched if kernels else own)
        if not call.whole and own < call.inside:
            operator = replace(operator, bytes=0)  # those inside of it have moved them
        key = operator.name, operator.dtype, operator.flops, operator.bytes
        seen = found.get(key)
        found[key] = operator if seen is None else _joined(seen, operator)
    return [_all_calls(operator) for operator in found.values()], intervals


def _calls(events: Iterable[Event], kernels: Mapping[int, int]) -> Iterable[_Call]:
    """Return the calls that compute, with what is inside of each."""
    calls: list[_Call] = []
    around: list[_Call] = []
    for event in sorted(events, key=lambda event: (event.thread, event.start, -event.end)):
        while around and not _encloses(around[-1].event, event):
            around.pop()
        launched = kernels.get(event.identity, 0)
        if around and around[-1].whole:
            around[-1].launched += launched
            continue
        if around:
            around[-1].inside += event.end - event.start
        short = event.name.removeprefix("aten::")
        whole = bool(event.flops) or _is_matrix(short) or event.name.startswith(_COMPILED)
        around.append(_Call(event, whole, launched=launched))
        calls.append(around[-1])
    return [call for call in calls if call.whole or _computes(call.event.name)]


def _encloses(outer: Event, event: Event) -> bool:
    return outer.thread == event.thread and event.start < outer.end


def _computes(name: str) -> bool:
    space, _, rest = name.partition("::")
    return bool(rest) and space not in _NO_OPERATORS and name not in _NO_WORK


def _is_matrix(short: str) -> bool:
    return (
        short in _PRODUCTS
        or short in ("linear", "convolution", "convolution_backward")
        or short.startswith(_ATTENTION)
    )


def _operator(event: Event, took: int) -> Operator:
    short = event.name.removeprefix("aten::")
    shapes = [list(shape) for shape in event.shapes]
    sizes = [
        math.prod(shape) * _ITEM_SIZES[kind]
        for shape, kind in zip(shapes, event.dtypes, strict=False)
        if kind in _ITEM_SIZES and all(isinstance(side, int) for side in shape)
    ]
    dtype = next((kind for kind in event.dtypes if kind in _ITEM_SIZES), "")
    try:
        flops = event.flops or _flops(short, shapes)
    except (IndexError, TypeError):  # shapes of another version of torch
        flops = 0
    return Operator(
        name=event.name,
        dtype=_SHORT.get(dtype, dtype),
        seconds=took / 1e9,
        flops=flops,
        # The result is taken to be as large as the largest argument.
        bytes=sum(sizes) + max(sizes, default=0),
    )


def _flops(short: str, shapes: Sequence[Sequence[int]]) -> int:
    """Return the FLOPs of an operator of matrices; 0 of any other."""
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


def _joined(first: Operator, second: Operator) -> Operator:
    return replace(first, seconds=first.seconds + second.seconds, calls=first.calls + second.calls)


def _all_calls(operator: Operator) -> Operator:
    """Return the operator with the FLOPs and bytes of all its calls."""
    return replace(
        operator, flops=operator.flops * operator.calls, bytes=operator.bytes * operator.calls
    )
