"""Kernels of torch for CUDA, run on the CPU over the same memory."""

from __future__ import annotations

import ctypes
import importlib
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

anything: Any = torch  # without types: much of what is used here has none
aten: Any = torch.ops.aten
C: Any = torch._C

# Operators whose results the host reads: with `set_sync_debug_mode("error")` they are refused.
_READ_BY_THE_HOST = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2"} | {
    *("unique_dim", "unique_consecutive", "bincount", "is_nonzero", "repeat_interleave.Tensor")
}
# Operators that launch no kernel.
_AS_THEY_ARE = {"empty.memory_format", "empty_strided", "as_strided", "view", "_reshape_alias"} | {
    *("record_stream", "is_pinned", "_pin_memory", "resize_", "unfold", "set_", "is_set_to"),
    *("set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor"),
    *("set_data", "view_as_real", "view_as_complex", "_efficientzerotensor"),
}

_library: Any = None
_in_flight: deque[tuple[Any, Any]] = deque()  # events, and what is copied before them
_kept: list[Any] = []


def install() -> None:
    """Register the CPU's kernels for CUDA, in this process."""
    global _library
    _library = ctypes.CDLL(os.environ["PRETEND_GPU"])
    _library.pretend_drain.argtypes = [ctypes.c_ulong]
    pointer = ctypes.c_void_p
    _library.cudaMemcpyAsync.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_int, pointer]
    library = anything.library.Library("aten", "IMPL")
    _kept.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each kernel is registered in place of another
        for name in C._dispatch_get_all_op_names():
            space, _, name = name.partition("::")
            if space == "aten" and (found := _kernel(name)) is not None:
                library.impl(name, found, "CUDA")
    # Of the kernels for attention, the one that is written in other operators.
    cuda: Any = torch.backends.cuda
    for which in ("flash", "mem_efficient", "cudnn"):
        getattr(cuda, f"enable_{which}_sdp")(False)
    flex: Any = importlib.import_module("torch.nn.attention.flex_attention")
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    anything.compile = lambda model=None, **_: model if model is not None else lambda each: each
    _decode_on_the_cpu()


def _kernel(name: str) -> Callable[..., Any] | None:
    """Return what runs in place of a kernel; None for operators that need nothing."""
    base, _, overload = name.partition(".")
    if name in _OWN:
        return _OWN[name]
    if name in _AS_THEY_ARE or not C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"):
        return None
    try:
        operator = getattr(getattr(aten, base), overload or "default")
    except AttributeError:
        return None
    infos = [each.alias_info for each in operator._schema.arguments]
    if any(info is not None and not info.is_write for info in infos):
        return None  # a view
    return _on_the_cpu(operator, name)


def _on_the_cpu(operator: Any, name: str) -> Callable[..., Any]:
    wants_tensor = [str(each.type) == "Tensor" for each in operator._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        sized = kwargs.get("output_size") is not None
        if name in _READ_BY_THE_HOST and not sized:
            _refuse_waiting(name)
        if name in ("_softmax", "_log_softmax") and args[2]:  # half to float, which the CPU lacks
            args = args[0].float(), args[1], False
        if name in ("_softmax_backward_data", "_log_softmax_backward_data"):
            upstream, out, dim, dtype = args
            if upstream.dtype != dtype:
                return operator(upstream, out, dim, upstream.dtype).to(dtype)
        pairs = zip(args, wants_tensor, strict=False)
        given = [torch.tensor(x) if t and isinstance(x, int | float) else x for x, t in pairs]
        with _below_autograd():
            held: dict[int, tuple[Tensor, Tensor]] = {}
            there = tree_map(lambda value: _to_host(value, held), (given, kwargs))
            if "pin_memory" in there[1]:
                there[1]["pin_memory"] = None
            out = operator(*there[0], **there[1])
            return tree_map(lambda value: _from_host(value, held), out)

    return run


@contextmanager
def _below_autograd() -> Iterator[None]:
    """Run without gradients, behind all that the current stream has to do."""
    with C._AutoDispatchBelowAutograd():
        _library.pretend_drain(_stream())
        yield


def _stream() -> int:
    return int(C._cuda_getCurrentRawStream(0))


def _refuse_waiting(what: str) -> None:
    if C._cuda_get_sync_debug_mode() == 2:
        raise RuntimeError(f"called a synchronizing CUDA operation: {what}")


def alias(tensor: Tensor) -> Tensor:
    """Return a tensor of the CPU with the memory of one of the device."""
    size = tensor.untyped_storage().nbytes()
    if not tensor.numel() or not size:
        shape, strides = tensor.shape, tensor.stride()
        return torch.empty_strided(shape, strides, dtype=tensor.dtype, device="cpu")
    memory = (ctypes.c_char * size).from_address(tensor.untyped_storage().data_ptr())
    raw = torch.frombuffer(memory, dtype=torch.uint8)
    out = torch.empty(0, dtype=tensor.dtype, device="cpu")
    whole = raw.untyped_storage()
    out.set_(whole, tensor.storage_offset(), tensor.shape, tensor.stride())
    out = out.conj() if tensor.is_conj() else out
    return torch._neg_view(out) if tensor.is_neg() else out


def upload(tensor: Tensor) -> Tensor:
    """Return a copy on the device, made at once."""
    shape, strides = tensor.shape, tensor.stride()
    out = torch.empty_strided(shape, strides, dtype=tensor.dtype, device="cuda")
    if tensor.numel():
        alias(out).copy_(tensor)
    return out


def _to_host(value: Any, held: dict[int, tuple[Tensor, Tensor]]) -> Any:
    if isinstance(value, Tensor) and value.is_cuda:
        if id(value) not in held:
            held[id(value)] = alias(value), value
        return held[id(value)][0]
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, torch.Generator) and value.device.type == "cuda":
        return None
    return value


def _from_host(value: Any, held: dict[int, tuple[Tensor, Tensor]]) -> Any:
    if not isinstance(value, Tensor) or value.is_cuda:
        return value
    for here, there in held.values():
        if here is value:
            if there.shape != value.shape:  # an `out=` that was empty
                there.resize_(value.shape)
                alias(there).copy_(value)
            return there
    return upload(value)


def _copy(self: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    crosses = self.is_cuda != source.is_cuda
    if crosses and not non_blocking:
        _refuse_waiting(f"copy from {source.device} to {self.device}")
    plain = self.dtype == source.dtype and self.shape == source.shape and self.numel() > 0
    plain = plain and self.is_contiguous() and source.is_contiguous()
    if plain and not (source.is_neg() or source.is_conj()):
        size = self.numel() * self.element_size()
        with C._AutoDispatchBelowAutograd():
            _library.cudaMemcpyAsync(self.data_ptr(), source.data_ptr(), size, 0, _stream())
            if crosses and non_blocking:
                _keep(source if self.is_cuda else self)
            if crosses and not non_blocking:
                _library.pretend_drain(_stream())
        return self
    with _below_autograd():
        here = alias(self) if self.is_cuda else self
        here.copy_(alias(source) if source.is_cuda else source)
    return self


def _keep(host: Tensor) -> None:
    """Keep memory, though not its tensor, until it was copied: torch's allocator does the same."""
    event = anything.cuda.Event()
    event.record()
    _in_flight.append((event, host.untyped_storage()))
    while _in_flight and _in_flight[0][0].query():
        _in_flight.popleft()


def _to_copy(
    self: Tensor,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Tensor:
    place = self.device if device is None else device
    order = torch.preserve_format if memory_format is None else memory_format
    out = torch.empty_like(self, dtype=dtype, device=place, memory_format=order)
    return _copy(out, self, non_blocking)


def _bounded(
    causal: bool, q: Tensor, k: Tensor, scale: float, bounds: tuple[Tensor, Tensor]
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield rows of queries and keys of each segment, and their scores [heads, queries, keys]."""
    for (a, b), (c, d) in zip(*(pairwise(alias(each).tolist()) for each in bounds), strict=True):
        if a == b:
            continue
        keys = k[c:d].repeat_interleave(q.shape[1] // k.shape[1], 1)
        scores = torch.einsum("qhd,khd->hqk", q[a:b], keys) * scale
        if causal:
            seen = torch.ones(b - a, d - c, dtype=torch.bool).tril(d - c - b + a)
            scores = scores.masked_fill(~seen, float("-inf"))
        yield slice(a, b), slice(c, d), scores


def _flash_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds_q: Tensor,
    bounds_k: Tensor,
    *others: Any,  # longest_q, longest_k, dropout, causal ...
    scale: float | None = None,
    window_size_right: int | None = None,
    **_: Any,
) -> tuple[Tensor, ...]:
    with _below_autograd():
        q, k, v = (alias(each).float() for each in (query, key, value))
        out = torch.full_like(q, float("nan"))  # rows of no segment are not written
        sums = torch.zeros(q.shape[1], len(q))
        scale = scale or q.shape[-1] ** -0.5
        causal = others[3] or window_size_right == 0
        for rows, cols, scores in _bounded(causal, q, k, scale, (bounds_q, bounds_k)):
            sums[:, rows] = scores.logsumexp(-1)
            values = v[cols].repeat_interleave(q.shape[1] // v.shape[1], 1)
            out[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
        state = torch.zeros(2, dtype=torch.int64)
        made = out.to(query.dtype), sums, state, state[0], torch.zeros(0)
        return tuple(map(upload, made))


def _flash_backward(
    upstream: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    sums: Tensor,
    bounds_q: Tensor,
    bounds_k: Tensor,
    *others: Any,  # longest_q, longest_k, dropout, causal ...
    scale: float | None = None,
    window_size_right: int | None = None,
    **_: Any,
) -> tuple[Tensor, ...]:
    with _below_autograd():
        g, q, k, v = (alias(each).float() for each in (upstream, query, key, value))
        to_q, to_k, to_v = (torch.zeros_like(each) for each in (q, k, v))
        scale, peers = scale or q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]
        causal = others[3] or window_size_right == 0
        for rows, cols, scores in _bounded(causal, q, k, scale, (bounds_q, bounds_k)):
            keys, values = (each[cols].repeat_interleave(peers, 1) for each in (k, v))
            weights = scores.softmax(-1)
            to_weights = torch.einsum("qhd,khd->hqk", g[rows], values)
            down = (to_weights * weights).sum(-1, keepdim=True)
            to_scores = weights * (to_weights - down) * scale
            to_q[rows] = torch.einsum("hqk,khd->qhd", to_scores, keys)
            for into, made in (
                (to_k, torch.einsum("hqk,qhd->khd", to_scores, q[rows])),
                (to_v, torch.einsum("hqk,qhd->khd", weights, g[rows])),
            ):
                into[cols] = made.view(len(made), k.shape[1], peers, -1).sum(2)
        return tuple(upload(each.to(query.dtype)) for each in (to_q, to_k, to_v))


def _rms_norm(
    x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> tuple[Tensor, Tensor]:
    with _below_autograd():
        values, dims = alias(x).float(), tuple(range(-len(shape), 0))
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        scale = (values.square().mean(dims, keepdim=True) + eps).rsqrt()
        out = values * scale * (1.0 if weight is None else alias(weight).float())
        return upload(out.to(x.dtype)), upload(scale)


def _rms_norm_backward(
    upstream: Tensor, x: Tensor, shape: Any, scale: Tensor, weight: Tensor | None, mask: Any
) -> tuple[Tensor, Tensor | None]:
    with _below_autograd():
        values, g, r = (alias(each).float() for each in (x, upstream, scale))
        dims = tuple(range(-len(shape), 0))
        weighted = g * (1.0 if weight is None else alias(weight).float())
        to_x = r * weighted - values * r**3 * (weighted * values).mean(dims, keepdim=True)
        if weight is None:
            return upload(to_x.to(x.dtype)), None
        to_weight = (g * values * r).flatten(0, -len(shape) - 1).sum(0)
        return upload(to_x.to(x.dtype)), upload(to_weight.to(weight.dtype))


_OWN: dict[str, Callable[..., Any]] = {
    "copy_": _copy,
    "_to_copy": _to_copy,
    "_flash_attention_forward": _flash_forward,
    "_flash_attention_backward": _flash_backward,
    "_fused_rms_norm": _rms_norm,
    "_fused_rms_norm_backward": _rms_norm_backward,
}


def _decode_on_the_cpu() -> None:
    """Let DALI's graph run on the CPU, and copy what it makes to the device."""
    pipeline: Any = importlib.import_module("datapipe.decode.dali.pipeline")
    build, from_dlpack = pipeline.build, pipeline.from_dlpack

    def build_there(spec: Any, device: torch.device, *options: Any) -> Any:
        return build(spec, torch.device("cpu"), *options)

    def from_dlpack_there(batch: Any) -> Tensor:
        return upload(from_dlpack(batch))

    pipeline.build = build_there
    pipeline.from_dlpack = from_dlpack_there
