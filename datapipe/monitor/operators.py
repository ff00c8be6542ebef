"""Operators of one step, from the events of torch's profiler: their time, FLOPs and bytes.

The time of an operator is its own, without that of operators inside of it; one of matrices, such as
`aten::linear`, stands for all inside of it. On a GPU it is the time of the kernels. Views and
allocations are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from datapipe.diagnosis.step_roofline import Operator

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
    took: dict[tuple[str, str, int, int], list[int]] = {}
    intervals = []
    for call in _outermost(calls, kernels):
        intervals.append((call.start, call.end))
        own = call.end - call.start - (0 if call.whole else call.inside)
        dtype, flops, moved = _work(call)
        if not call.whole and own < call.inside:
            moved = 0  # those inside of it have moved them
        took.setdefault((call.name, dtype, flops, moved), []).append(
            call.launched if kernels else own
        )
    operators = [
        Operator(
            name=name,
            dtype=dtype,
            seconds=sum(times) / 1e9,
            flops=flops * len(times),
            bytes=moved * len(times),
            calls=len(times),
        )
        for (name, dtype, flops, moved), times in took.items()
    ]
    return operators, intervals


def _outermost(calls: Iterable[Call], kernels: Mapping[int, int]) -> Iterable[Call]:
    """Return the calls in no other that stands for them, with what is inside of each."""
    found: list[Call] = []
    around: list[Call] = []
    for call in sorted(calls, key=lambda call: (call.thread, call.start, -call.end)):
        while around and (around[-1].thread != call.thread or call.start >= around[-1].end):
            around.pop()
        call.launched = kernels.get(call.raw.correlation_id(), 0) if kernels else 0
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
