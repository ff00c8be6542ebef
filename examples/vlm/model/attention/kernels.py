"""Attention within segments, by every kernel that PyTorch and its neighbours have for it.

Each takes queries `[T, heads, D]`, keys and values `[T, kv_heads, D]` and `Segments`, and gives
`[T, heads, D]`. Scores are scaled by `1 / sqrt(D)`. A head of keys serves `heads / kv_heads`
neighbouring heads of queries. `dropout` is the share of weights set to zero; the others are scaled
by `1 / (1 - dropout)`. Kernels that know no dropout are refused by `why_not`.
"""

from collections.abc import Callable
from functools import cache
from math import gcd
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.nn.functional import all_to_all_single
from torch.nn import functional

HALF = (torch.bfloat16, torch.float16)

_VARIANTS = 64  # of `flex_attention` that are compiled at most, see `allow_variants`
# Major and minor version; a constant, because compiled code cannot parse it.
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))

WITH_DROPOUT = ("plain", "sdpa", "split", "flash", "xformers")


class Segments(NamedTuple):
    """Concatenated sequences in `[T, ...]`: all that attention needs to keep them apart.

    A padded batch of B rows is B segments of one length, so one model serves both forms.
    """

    bounds: Tensor  # int32 [S + 1], from 0 to T; segments may be empty
    longest: int  # length of the longest, or more; on the host: nothing waits for the device
    same: int  # length of all of them, or 0 if they differ
    causal: bool  # a token sees only those of its sequence up to itself
    mask: Any = None  # made by `attention.prepare`, once for all layers, as is `kernel`
    kernel: str = ""
    group: dist.ProcessGroup | None = None  # ranks that share the tokens, in order; None: all here

    @classmethod
    def of_rows(cls, rows: int, length: int, *, causal: bool, device: torch.device) -> Self:
        bounds = torch.arange(0, (rows + 1) * length, length, dtype=torch.int32, device=device)
        return cls(bounds, length, length, causal)

    def owners(self, total: int) -> Tensor:
        """Return the sequence of each of `total` tokens: int64 [total]."""
        tokens = torch.arange(total, device=self.bounds.device, dtype=self.bounds.dtype)
        return torch.searchsorted(self.bounds, tokens, right=True) - 1

    def visible(self, total: int) -> Tensor:
        """Return which tokens (columns) each token (rows) sees: bool [total, total]."""
        owners = self.owners(total)
        same = owners[:, None] == owners
        return same.tril() if self.causal else same


Kernel = Callable[[Tensor, Tensor, Tensor, Segments, float], Tensor]


def plain(q: Tensor, k: Tensor, v: Tensor, segments: Segments, dropout: float) -> Tensor:
    """Every score in memory, as in the paper ("Attention Is All You Need"): the yardstick."""
    q, k, v = (_rows(x, segments) for x in (q, k, v))
    k, v = (_repeated(x, q.shape[1] // x.shape[1]) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    mask = segments.mask
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.softmax(-1, dtype=wide).to(v.dtype)
    if dropout:
        weights = functional.dropout(weights, dropout)
    out: Tensor = weights @ v
    return out.transpose(1, 2).flatten(0, 1)


def sdpa(q: Tensor, k: Tensor, v: Tensor, segments: Segments, dropout: float) -> Tensor:
    """`scaled_dot_product_attention`: with a block-diagonal mask, or row by row where they fit."""
    q, k, v = (_rows(x, segments) for x in (q, k, v))
    mask, causal = (None, segments.causal) if segments.same else (segments.mask, False)
    grouped = q.shape[1] != k.shape[1]
    if grouped and q.is_cuda and (mask is not None or q.dtype not in HALF):
        # Of the fused kernels only Flash Attention knows groups, and it takes no mask and no
        # float32; with `enable_gqa` PyTorch would hold every score in memory.
        k, v = (_repeated(x, q.shape[1] // x.shape[1]) for x in (k, v))
        grouped = False
    out = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, enable_gqa=grouped
    )
    return out.transpose(1, 2).flatten(0, 1)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def split(q: Tensor, k: Tensor, v: Tensor, segments: Segments, dropout: float) -> Tensor:
    """`scaled_dot_product_attention` of one segment after another: no score between samples.

    The lengths are read on the host, so on a GPU it would wait for the device. `torch.compile`
    leaves it as it is: compiled, it would be another program for every batch's lengths.
    """
    if segments.same:
        return sdpa(q, k, v, segments, dropout)
    lengths: list[int] = segments.bounds.diff().tolist()
    # The gradients of parts are put together once; each slice would fill a whole row of zeros.
    queries, keys, values = (torch.split(x, lengths) for x in (q, k, v))
    outs = [
        sdpa(*part, Segments(segments.bounds, length, length, segments.causal), dropout)
        for part, length in zip(zip(queries, keys, values, strict=True), lengths, strict=True)
        if length
    ]
    return torch.cat(outs)


def flex(q: Tensor, k: Tensor, v: Tensor, segments: Segments, dropout: float) -> Tensor:
    """`flex_attention` with a document mask, compiled; on the CPU without gradients."""
    grouped = q.shape[1] != k.shape[1]
    q, k, v = (_rows(x, segments) for x in (q, k, v))
    compiled = compiled_flex(q.device.type)
    out: Tensor = compiled(q, k, v, block_mask=segments.mask, enable_gqa=grouped)
    return out.transpose(1, 2).flatten(0, 1)


def varlen(q: Tensor, k: Tensor, v: Tensor, segments: Segments, dropout: float) -> Tensor:
    """`torch.nn.attention.varlen.varlen_attn`: Flash Attention that is told the bounds."""
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, Any] = {}
    if q.shape[1] != k.shape[1]:
        if TORCH >= (2, 12):
            options["enable_gqa"] = True
        else:  # it has no such option, so keys and values get as many heads as queries
            k, v = (_repeated(x, q.shape[1] // x.shape[1]) for x in (k, v))
    q, k, v = (x.contiguous() for x in (q, k, v))
    bounds, longest = segments.bounds, segments.longest
    window = (-1, 0) if segments.causal else (-1, -1)  # tokens before and after; -1: all
    out = varlen_attn(q, k, v, bounds, bounds, longest, longest, window_size=window, **options)
    assert isinstance(out, Tensor)
    return out


def flash(q: Tensor, k: Tensor, v: Tensor, segments: Segments, dropout: float) -> Tensor:
    from flash_attn import flash_attn_varlen_func

    bounds, longest = segments.bounds, segments.longest
    out: Tensor = flash_attn_varlen_func(
        q, k, v, bounds, bounds, longest, longest, dropout_p=dropout, causal=segments.causal
    )
    return out


def xformers(q: Tensor, k: Tensor, v: Tensor, segments: Segments, dropout: float) -> Tensor:
    """`memory_efficient_attention` of the package xformers, with its block-diagonal mask."""
    from xformers.ops import memory_efficient_attention

    k, v = (_repeated(x, q.shape[1] // x.shape[1]) for x in (k, v))
    out: Tensor = memory_efficient_attention(
        q[None], k[None], v[None], attn_bias=segments.mask, p=dropout
    )
    return out[0]


KERNELS: dict[str, Kernel] = {
    kernel.__name__: kernel for kernel in (plain, sdpa, split, flex, varlen, flash, xformers)
}


@cache
def compiled_flex(device: str) -> Any:
    """Return `flex_attention`, compiled for a type of device.

    A second number of tokens makes that number dynamic, which torch 2.13 does not compile on the
    CPU. Uncompiled it holds every score in memory, so `fullgraph` raises an error instead.
    """
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, fullgraph=True, dynamic=False if device == "cpu" else None)


def allow_variants() -> None:
    """Let `flex_attention` be compiled often enough; call it outside of compiled code.

    All its uses share one limit, by default 8: encoder and language model, each for one number of
    tokens and then for any, for one image, and all that without gradients in evaluations. Beyond
    the limit `compiled_flex` would raise an error.
    """
    config: Any = torch._dynamo.config
    config.recompile_limit = max(_VARIANTS, config.recompile_limit)


def _rows(x: Tensor, segments: Segments) -> Tensor:
    """`[T, heads, D]` as `[T / length, heads, length, D]`: one row, if the lengths differ."""
    return x.view(-1, segments.same or len(x), *x.shape[1:]).transpose(1, 2)


def _repeated(x: Tensor, times: int) -> Tensor:
    """Each head (of dimension 1) `times` times."""
    return x if times == 1 else x.repeat_interleave(times, dim=1)


def attend(
    q: Tensor, k: Tensor, v: Tensor, segments: Segments, kernel: str, dropout: float = 0.0
) -> Tensor:
    """Attention of every token to those of its segment, by one of `KERNELS`: `[T, heads, D]`.

    `prepare` made the segments for this kernel. With a `group`, queries, keys and values
    belong to this rank's tokens alone. `dropout` is not 0 only for kernels of `WITH_DROPOUT`.
    """
    compute = KERNELS[kernel]
    if segments.group is None:
        return compute(q, k, v, segments, dropout)
    return _over_heads(compute, q, k, v, segments, dropout)


def _over_heads(
    compute: Kernel, q: Tensor, k: Tensor, v: Tensor, segments: Segments, dropout: float
) -> Tensor:
    """Attention of rows whose tokens lie on several ranks, by an exchange of tokens for heads.

    Attention sees whole samples. Before it, a rank gives away the heads of others and gets all
    tokens for its own; after it the reverse (Ulysses, arXiv 2309.14509). So every kernel works, and
    the bounds of samples hold. The ranks divide `heads`; heads of keys are repeated if need be.
    """
    ranks = dist.get_world_size(segments.group)

    def exchange(x: Tensor) -> Tensor:
        """Send `x[i]` to rank i, and return what every rank sent here, in the order of ranks."""
        room = torch.empty_like(x, memory_format=torch.contiguous_format)
        # Its gradients go the same way back.
        exchanged: Tensor = all_to_all_single(  # type: ignore[no-untyped-call]
            room, x.contiguous(), group=segments.group
        )
        return exchanged

    k, v = (_repeated(x, ranks // gcd(x.shape[1], ranks)) for x in (k, v))
    # One message for all three: of every part, the heads of one rank after those of another.
    parts = [x.reshape(len(x), ranks, -1, x.shape[2]) for x in (q, k, v)]
    got = exchange(torch.cat(parts, dim=2).transpose(0, 1)).flatten(0, 1)
    q, k, v = torch.split(got, [part.shape[2] for part in parts], dim=1)
    out = compute(q, k, v, segments, dropout)
    return exchange(out.view(ranks, -1, *out.shape[1:])).transpose(0, 1).flatten(1, 2)
