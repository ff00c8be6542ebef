"""The transformer block that the encoder and the language model share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from examples.vlm.attention import Segments, attend
from examples.vlm.rotary import rotate


class Attention(nn.Module):
    """Attention within segments, with rotary positions and grouped queries."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.size, bias=False)
        self.v = nn.Linear(width, kv_heads * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, turned: Tensor, segments: Segments, kernel: str) -> Tensor:
        # Under tensor parallelism these are the heads of this rank alone.
        q, k, v = (part(x).unflatten(1, (-1, self.size)) for part in (self.q, self.k, self.v))
        q, k = rotate(q, turned), rotate(k, turned)
        mixed: Tensor = self.out(attend(q, k, v, segments, kernel).flatten(1))
        return mixed


class SwiGLU(nn.Module):
    """Gated MLP (arXiv 2002.05202)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return mixed


class Block(nn.Module):
    """A pre-norm block: `[T, width]` in, `[T, width]` out."""

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads, kv_heads)
        self.mlp = SwiGLU(width, hidden)

    def forward(self, x: Tensor, turned: Tensor, segments: Segments, kernel: str) -> Tensor:
        x = x + self.attention(self.attention_norm(x), turned, segments, kernel)
        mixed: Tensor = x + self.mlp(self.mlp_norm(x))
        return mixed


class Transformer(nn.Module):
    """Blocks, and a norm behind them.

    Attributes:
        recompute: whether activations inside of blocks are computed again in the backward pass
            rather than kept (activation checkpointing).
    """

    def __init__(self, width: int, layers: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.recompute = False

    def forward(self, x: Tensor, turned: Tensor, segments: Segments, kernel: str) -> Tensor:
        for block in self.blocks:
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(block, x, turned, segments, kernel, use_reentrant=False)
            else:
                x = block(x, turned, segments, kernel)
        normed: Tensor = self.norm(x)
        return normed
