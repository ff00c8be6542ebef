"""Attention computed by a kernel, by its definition, and compared."""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.vlm.model.attention import Segments, attend, prepare

causality = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])


def make_segments(lengths: Sequence[int], causal: bool, device: str = "cpu") -> Segments:
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    return Segments(bounds, max(lengths), 0, causal)


def make_inputs(
    total: int, heads: int = 4, kv_heads: int = 2, size: int = 16, dtype: Any = torch.float64
) -> list[Tensor]:
    """Queries, keys, values, and gradients of what comes out."""
    made = torch.Generator().manual_seed(total)
    shapes = [(total, number, size) for number in (heads, kv_heads, kv_heads, heads)]
    return [torch.randn(shape, generator=made, dtype=dtype) for shape in shapes]


def run(kernel: str, inputs: Sequence[Tensor], segments: Segments) -> list[Tensor]:
    """What comes out, and the gradients of queries, keys and values."""
    *leaves, upstream = (x.detach().clone().requires_grad_() for x in inputs)
    prepared = prepare(segments, len(leaves[0]), kernel)
    out = attend(*leaves, prepared, kernel)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream.detach())]


def naive(
    q: Tensor, k: Tensor, v: Tensor, bounds: Sequence[int], causal: bool, scale: float | None = None
) -> Tensor:
    """Attention of one head of one segment after another, by its definition."""
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    columns = []
    for head in range(heads):
        rows = []
        for start, stop in pairwise(bounds):
            own, keys = q[start:stop, head], k[start:stop, head // group]
            scores = own @ keys.T * (scale or 1 / math.sqrt(q.shape[2]))
            if causal:
                hidden = torch.arange(stop - start)[:, None] < torch.arange(stop - start)
                scores = scores - torch.where(hidden, math.inf, 0.0)
            exps = (scores - scores.detach().amax(1, keepdim=True)).exp() if len(own) else scores
            rows.append(exps / exps.sum(1, keepdim=True) @ v[start:stop, head // group])
        columns.append(torch.cat(rows))
    return torch.stack(columns, dim=1)


def assert_same(got: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float) -> None:
    for name, one, other in zip(("out", "dq", "dk", "dv"), got, wanted, strict=True):
        torch.testing.assert_close(
            one, other, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: name + text
        )
