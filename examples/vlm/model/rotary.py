"""Rotary positions (RoFormer, arXiv 2104.09864), along one axis for text and two for images."""

import torch
from torch import Tensor


def angles(positions: Tensor, size: int, base: float = 10_000.0) -> Tensor:
    """Angle of each pair of values: float32 `[T, size / 2]` for positions `[T]`."""
    exponents = torch.arange(0, size, 2, device=positions.device, dtype=torch.float32) / size
    return positions.float()[:, None] * base**-exponents


def rotate(x: Tensor, turned: Tensor) -> Tensor:
    """Turn values `[T, heads, D]` by angles `[T, D / 2]`, in float32 or more; the dtype stays.

    Value i is paired with value i + D / 2, as in GPT-NeoX and Llama.
    """
    cos, sin = turned.cos()[:, None], turned.sin()[:, None]
    first, second = x.to(torch.promote_types(x.dtype, turned.dtype)).chunk(2, dim=-1)
    out = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return out.to(x.dtype)
