"""Keys and values of the tokens that were read, kept for those that follow."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from examples.vlm.model.attention import Segments, attend
from examples.vlm.model.layers import Transformer


class KVCache:
    """Keys and values of every layer, for several texts of different lengths.

    The first pass has all tokens of all texts, concatenated. Each later one has the next token of
    every text, up to `room` tokens. `positions` (int64) are those of the pass's tokens.
    """

    def __init__(self, lengths: Sequence[int], room: int, device: torch.device) -> None:
        self._texts = torch.arange(len(lengths), device=device)
        self._lengths = torch.tensor(lengths, device=device)
        self._slots = torch.arange(room, device=device)
        self._owners = self._texts.repeat_interleave(self._lengths)
        self.positions = torch.cat([torch.arange(length, device=device) for length in lengths])
        self._first = True
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def next(self) -> None:
        """Begin the pass of the next token of every text."""
        self._owners, self.positions = self._texts, self._lengths
        self._lengths = self._lengths + 1
        self._first = False

    @contextmanager
    def used_by(self, transformer: Transformer) -> Iterator[None]:
        """Let the blocks of a transformer use the cache, uncompiled."""
        attentions: list[Any] = [block.attention for block in transformer.blocks]
        with torch.compiler.set_stance("force_eager"):
            for layer, attention in enumerate(attentions):
                attention.attend = partial(self._attend, layer)
            try:
                yield
            finally:
                for attention in attentions:
                    attention.attend = attend

    def _attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, segments: Segments, kernel: str, *_: Any
    ) -> Tensor:
        if self._first:
            shape = (len(self._texts), k.shape[1], len(self._slots), k.shape[2])
            self._kept[layer] = k.new_zeros(shape), v.new_zeros(shape)
        keys, values = self._kept[layer]
        keys[self._owners, :, self.positions] = k
        values[self._owners, :, self.positions] = v
        if self._first:
            return attend(q, k, v, segments, kernel)
        read = (self._slots < self._lengths[:, None])[:, None, None]
        out = functional.scaled_dot_product_attention(
            q[:, :, None], keys, values, attn_mask=read, enable_gqa=q.shape[1] != k.shape[1]
        )
        return out[:, :, 0]
