"""Attention of rows whose tokens lie on several ranks, by an exchange of tokens for heads.

Attention sees whole samples. Before it, a rank gives away the heads of others and gets all tokens
for its own; after it the reverse (Ulysses, arXiv 2309.14509). So every kernel works, and the bounds
of samples hold.
"""

from collections.abc import Callable
from math import gcd
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def over_heads(
    attention: Attention, q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup
) -> Tensor:
    """Attention of whole rows, of which every rank of a group has a share of the tokens.

    Args:
        attention: takes all tokens of some heads, as `attend` does.
        q: `[T / ranks, heads, D]`; the ranks divide `heads`.
        k, v: `[T / ranks, kv_heads, D]`; repeated if the ranks do not divide `kv_heads`.
    """
    ranks = dist.get_world_size(group)
    times = ranks // gcd(k.shape[1], ranks)
    k, v = (x.repeat_interleave(times, dim=1) if times > 1 else x for x in (k, v))
    # One message for all three: of every part, the heads of one rank after those of another.
    parts = [x.reshape(len(x), ranks, -1, x.shape[2]) for x in (q, k, v)]
    sent = torch.cat(parts, dim=2).transpose(0, 1)
    got = _exchange(sent, group).flatten(0, 1)
    q, k, v = torch.split(got, [part.shape[2] for part in parts], dim=1)
    out = attention(q, k, v)
    back = _exchange(out.view(ranks, -1, *out.shape[1:]), group)
    return back.transpose(0, 1).flatten(1, 2)


def _exchange(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send `x[i]` to rank i, and return what every rank sent here, in the order of ranks."""
    exchanged: Tensor = _Exchange.apply(x, group)  # type: ignore[no-untyped-call]
    return exchanged


class _Exchange(torch.autograd.Function):
    """An all-to-all of equal parts; gradients go the same way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _exchange(gradient, ctx.group), None
