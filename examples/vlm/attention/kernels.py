"""Attention within segments, by every kernel that PyTorch and its neighbours have for it.

Each takes queries `[T, heads, D]`, keys and values `[T, kv_heads, D]` and `Segments`, and gives
`[T, heads, D]`. Scores are scaled by `1 / sqrt(D)`. A head of keys serves `heads / kv_heads`
neighbouring heads of queries.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from examples.vlm.attention.segments import Segments

Kernel = Callable[[Tensor, Tensor, Tensor, Segments], Tensor]


def plain(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """Every score in memory, as in the paper ("Attention Is All You Need"): the yardstick."""
    if segments.same:
        q, k, v = (_rows(x, segments.same) for x in (q, k, v))
    else:
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    k, v = (_repeated(x, q.shape[1] // k.shape[1]) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    mask = segments.mask
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1, torch.promote_types(q.dtype, torch.float32)).to(v.dtype)
    out: Tensor = weights @ v
    return out.transpose(1, 2).flatten(0, 1)


def sdpa(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """`scaled_dot_product_attention`: with a block-diagonal mask, or row by row where they fit."""
    grouped = q.shape[1] != k.shape[1]
    if segments.same:
        q, k, v = (_rows(x, segments.same) for x in (q, k, v))
        out = functional.scaled_dot_product_attention(
            q, k, v, is_causal=segments.causal, enable_gqa=grouped
        )
        return out.transpose(1, 2).flatten(0, 1)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=segments.mask, enable_gqa=grouped
    )
    return out[0].transpose(0, 1)


def split(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """`scaled_dot_product_attention` of one segment after another: no score between samples.

    The lengths are read on the host, so on a GPU it would wait for the device.
    """
    if segments.same:
        return sdpa(q, k, v, segments)
    bounds: list[int] = segments.bounds.tolist()
    outs = [
        sdpa(q[a:b], k[a:b], v[a:b], Segments(segments.bounds, b - a, b - a, segments.causal))
        for a, b in pairwise(bounds)
        if a < b
    ]
    return torch.cat(outs)


def flex(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """`flex_attention` with a document mask, compiled; on the CPU without gradients."""
    out = compiled_flex()(
        *(x.transpose(0, 1)[None] for x in (q, k, v)),
        block_mask=segments.mask,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    result: Tensor = out[0].transpose(0, 1)
    return result


def varlen(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """`torch.nn.attention.varlen.varlen_attn`: Flash Attention that is told the bounds."""
    from torch.nn.attention.varlen import varlen_attn

    if q.shape[1] != k.shape[1]:
        # Older releases know no grouped queries.
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    bounds, longest = segments.bounds, segments.longest
    out = varlen_attn(
        q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        bounds,
        bounds,
        longest,
        longest,
        **_causal_option(segments.causal),
    )
    assert isinstance(out, Tensor)
    return out


def flash(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """`flash_attn_varlen_func` of the package flash-attn."""
    from flash_attn import flash_attn_varlen_func

    bounds, longest = segments.bounds, segments.longest
    out: Tensor = flash_attn_varlen_func(
        q, k, v, bounds, bounds, longest, longest, causal=segments.causal
    )
    return out


def xformers(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """`memory_efficient_attention` of the package xformers, with its block-diagonal mask."""
    from xformers.ops import memory_efficient_attention

    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    out: Tensor = memory_efficient_attention(q[None], k[None], v[None], attn_bias=segments.mask)
    return out[0]


KERNELS: dict[str, Kernel] = {
    "plain": plain,
    "sdpa": sdpa,
    "split": split,
    "flex": flex,
    "varlen": varlen,
    "flash": flash,
    "xformers": xformers,
}


@cache
def compiled_flex() -> Any:
    """`flex_attention`, compiled: uncompiled it holds every score in memory."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


@cache
def _varlen_parameters() -> frozenset[str]:
    from inspect import signature

    from torch.nn.attention.varlen import varlen_attn

    return frozenset(signature(varlen_attn).parameters)


def _causal_option(causal: bool) -> dict[str, Any]:
    """Releases before 2.11 say `is_causal`, later ones a window of tokens to the left and right."""
    if "window_size" in _varlen_parameters():
        return {"window_size": (-1, 0) if causal else (-1, -1)}
    return {"is_causal": causal}


def _rows(x: Tensor, length: int) -> Tensor:
    """`[T, heads, D]` as `[T / length, heads, length, D]`."""
    return x.view(-1, length, *x.shape[1:]).transpose(1, 2)


def _repeated(x: Tensor, times: int) -> Tensor:
    return x if times == 1 else x.repeat_interleave(times, dim=1)


def attend(q: Tensor, k: Tensor, v: Tensor, segments: Segments, kernel: str) -> Tensor:
    """Attention of every token to those of its segment.

    Args:
        q: `[T, heads, D]`.
        k, v: `[T, kv_heads, D]`; `kv_heads` divides `heads`.
        segments: that `prepare` made for this kernel.
        kernel: one of `KERNELS`.

    Returns:
        `[T, heads, D]`.
    """
    return KERNELS[kernel](q, k, v, segments)
