"""Sizes of a dataset as shards, in a cache of decoded images, and as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from datapipe.cache.entries import EntrySizes
from datapipe.cache.layout import EntryLayout
from datapipe.convert.array_files import array_bytes
from datapipe.decode.transform import ImageTransform
from datapipe.index.dataset import Dataset

FITS = 0.7
"""Share of the free memory that a cache may fill."""

_LOOKED_AT = 1 << 16  # samples of whose entries a cache's size is extrapolated
_NO_LIMIT = 1 << 62


@dataclass(frozen=True, kw_only=True)
class FormSizes:
    """Bytes of a dataset in other forms than shards."""

    cache: int  # memory that holds all of it
    arrays: int | None  # None if images have many sizes


def form_sizes(dataset: Dataset, kept: ImageTransform) -> FormSizes:
    """Estimate the sizes of a dataset whose images are kept as `kept` makes them."""
    sizes = EntrySizes(dataset.columns, kept, images=True)
    layout = EntryLayout(len(dataset), sizes, _NO_LIMIT, stop=_LOOKED_AT)
    return FormSizes(
        cache=round(layout.bytes * len(dataset) / max(layout.kept, 1)),
        arrays=array_bytes(dataset, kept.spec) if kept.spec.one_size else None,
    )


def free_memory() -> int:
    """Return the bytes that could be used without swapping; the page cache counts as free."""
    return int(psutil.virtual_memory().available)
