"""Positions of the sequences of a row of tokens: all that attention needs to keep them apart."""

from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor


class Segments(NamedTuple):
    """Concatenated sequences in `[T, ...]`.

    A padded batch of B rows is B segments of one length, so one model serves both forms.

    Attributes:
        bounds: int32 [S + 1], from 0 to T; segments may be empty.
        longest: length of the longest, or more; on the host, so that nothing waits for the device.
        same: length of all of them, or 0 if they differ.
        causal: True if a token sees only those of its sequence up to itself.
        mask, kernel: made by `attention.prepare`, once for all layers.
        group: ranks that share the tokens, in their order; None if all T are here.
    """

    bounds: Tensor
    longest: int
    same: int
    causal: bool
    mask: Any = None
    kernel: str = ""
    group: dist.ProcessGroup | None = None

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
