"""Rows of images in the memory of the device."""

from __future__ import annotations

import torch
from torch import Tensor

from datapipe.cache.layout import EntryLayout
from datapipe.errors import DatapipeError


class DeviceRows:
    """uint8 rows of the samples of an `EntryLayout`, whose sizes are numbers of rows.

    All calls must queue their work on one stream: `take` then finds every row that was put before.
    """

    def __init__(self, layout: EntryLayout, shape: tuple[int, ...], device: torch.device) -> None:
        self.layout = layout
        self.shape = shape
        self.device = device
        self._rows: Tensor | None = None

    def put(self, indices: Tensor, rows: Tensor) -> None:
        """Keep uint8 [n, *shape] at int64 [n], on the device; DatapipeError if it has no room."""
        if self._rows is None:
            count = int(self.layout.offsets[-1])
            try:
                self._rows = torch.empty(
                    (count, *self.shape), dtype=torch.uint8, device=self.device
                )
            except (torch.OutOfMemoryError, RuntimeError) as error:
                size = count * torch.Size(self.shape).numel()
                raise DatapipeError(
                    f"{self.device} has no room for {size:,} bytes of images; give a smaller "
                    "CacheSpec(device=...)"
                ) from error
        self._rows.index_copy_(0, indices, rows)

    def take(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at int64 [n]: uint8 [n, *shape], in `out` if given."""
        assert self._rows is not None, "rows are put before they are taken"
        return torch.index_select(self._rows, 0, indices, out=out)
