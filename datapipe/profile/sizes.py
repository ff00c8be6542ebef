"""Sizes of a dataset in a cache of decoded images, and of the memory for it."""

from __future__ import annotations

import psutil

from datapipe.cache.entries import EntrySizes
from datapipe.cache.layout import EntryLayout
from datapipe.decode.transform import ImageTransform
from datapipe.index.dataset import Dataset

FITS = 0.7
"""Share of the free memory that a cache may fill."""

_LOOKED_AT = 1 << 16  # samples of whose entries a cache's size is extrapolated
_NO_LIMIT = 1 << 62


def cache_bytes(dataset: Dataset, kept: ImageTransform) -> int:
    """Estimate the memory that holds a dataset whose images are kept as `kept` makes them."""
    sizes = EntrySizes(dataset.columns, kept, images=True)
    layout = EntryLayout(len(dataset), sizes, _NO_LIMIT, stop=_LOOKED_AT)
    return round(layout.bytes * len(dataset) / max(layout.kept, 1))


def free_memory() -> int:
    """Return the bytes that could be used without swapping; the page cache counts as free."""
    return int(psutil.virtual_memory().available)
