"""How many samples a batch has, whatever made it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def samples_of(batch: Any) -> int:
    """Samples of a batch; 0 where it does not say.

    A batch of datapipe says which of its samples are valid, or how many images each has. Of others,
    the first dimension of the first tensor counts, as `torch.utils.data.default_collate` makes it.
    A pack says nothing: it is one row.
    """
    if isinstance(batch, Mapping):
        if "valid" in batch:
            return int(batch["valid"].sum()) if hasattr(batch["valid"], "sum") else 0
        if "cu_seq_lens_q" in batch:
            return 0
        for name in ("images_per_sample", "input_ids"):
            if name in batch:
                return _rows(batch[name])
        return next((rows for value in batch.values() if (rows := _rows(value))), 0)
    if isinstance(batch, list | tuple):
        # A batch is a tuple of columns; a list of samples would be one without collation.
        return next((rows for value in batch if (rows := _rows(value))), 0)
    return _rows(batch)


def _rows(value: Any) -> int:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    return len(value) if isinstance(value, list | tuple) else 0
