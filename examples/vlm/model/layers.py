"""The transformer that the encoder and the language model share, and its rotary positions."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from examples.vlm.model.attention import Segments, attend
from examples.vlm.techniques import NONE


def angles(positions: Tensor, size: int, base: float = 10_000.0) -> Tensor:
    """Angle of each pair of values: float32 `[T, size / 2]` for positions `[T]`.

    Rotary positions (RoFormer, arXiv 2104.09864) have one axis for text and two for images.
    """
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


class Attention(nn.Module):
    """Attention within segments, with rotary positions and grouped queries.

    One product makes queries, keys and values. The rows of its weight are in groups: the queries
    that a head of keys serves, that head of keys, its head of values. So `ColwiseParallel` may
    divide them if the ranks divide `kv_heads`. `generate` replaces `attend` by one with a cache.
    """

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.size, self.queries = width // heads, heads // kv_heads
        self.qkv = nn.Linear(width, width + 2 * kv_heads * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.dropout = 0.0
        self.attend: Callable[..., Tensor] = attend

    def forward(self, x: Tensor, turned: Tensor, segments: Segments, kernel: str) -> Tensor:
        # Under tensor parallelism these are the groups of this rank alone.
        groups = self.qkv(x).view(len(x), -1, self.queries + 2, self.size)
        q, k, v = (part.flatten(1, 2) for part in groups.split((self.queries, 1, 1), dim=2))
        q, k = rotate(q, turned), rotate(k, turned)
        dropout = self.dropout if self.training else 0.0
        mixed: Tensor = self.out(self.attend(q, k, v, segments, kernel, dropout).flatten(1))
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
    """Blocks and a norm; activations of the blocks of `recompute` are computed again, not kept."""

    def __init__(self, width: int, layers: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.recompute = NONE

    def forward(self, x: Tensor, turned: Tensor, segments: Segments, kernel: str) -> Tensor:
        again = self.recompute if torch.is_grad_enabled() else NONE
        if again.segments:

            def through(block: nn.Module) -> Callable[[Tensor], Tensor]:
                return lambda x: block(x, turned, segments, kernel)

            parts = [through(block) for block in self.blocks]
            x = checkpoint_sequential(  # type: ignore[no-untyped-call]
                parts, again.segments, x, use_reentrant=False
            )
        else:
            for number, block in enumerate(self.blocks):
                if number in again.blocks:
                    x = checkpoint(block, x, turned, segments, kernel, use_reentrant=False)
                else:
                    x = block(x, turned, segments, kernel)
        normed: Tensor = self.norm(x)
        return normed
