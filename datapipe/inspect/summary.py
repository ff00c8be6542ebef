"""`summarize_dataset`: a dataset in figures, from its manifest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from datapipe.declared import checked
from datapipe.errors import IndexMismatch
from datapipe.index.dataset import FoundDataset, find_dataset
from datapipe.index.parquet import parse_index, read_index
from datapipe.index.record_fields import FIELDS, indexed_fields

_LOOKED_AT = 4  # shards whose index is read for the mean size of an image
_LARGEST = 200_000  # samples of such a shard


@dataclass(frozen=True, kw_only=True)
class DatasetSummary:
    """Result of `summarize_dataset`.

    Examples:
        >>> summary = datapipe.summarize_dataset("shards/")
        >>> summary.form, summary.samples, summary.images
        ('shards', 8, 8)
    """

    form: str  # "shards" or "arrays"
    # `samples`, `images`, `shards`: counts
    samples: int
    images: int
    shards: int
    bytes: int  # of the shards or arrays
    rejected: int  # inputs that could not be packed
    mean_pixels: float | None  # of the images of at most four shards; None without any
    fields: tuple[str, ...]  # fields of the records that are indexed beside the dataset
    arrays: tuple[str, ...]  # files of arrays


@checked(IndexMismatch)
def summarize_dataset(dataset: str | PathLike[str]) -> DatasetSummary:
    """Return the figures of a dataset.

    They come from its manifest, and the mean size of an image from the indexes of at most four
    shards. So a billion samples take no longer than their manifest. Sizes and checksums of other
    files are not compared, which `verify_dataset` does.

    Args:
        dataset: folder or URL of shards, folder of arrays, or tars of someone else, which are
            indexed if they are not yet.

    Raises:
        IndexMismatch: there is no finished dataset, or an index that is read is damaged.
        StoreError: a server does not answer, or tars of someone else cannot be indexed.

    Examples:
        >>> datapipe.summarize_dataset("shards/").rejected
        0
    """
    found = find_dataset(dataset)
    manifest = found.manifest
    pixels = np.concatenate([np.zeros(0), *_pixels(found)])
    # Those from before the dataset grew too: their columns are extended on first use.
    fields = indexed_fields(found.home / FIELDS, None) if isinstance(found.home, Path) else {}
    return DatasetSummary(
        form="shards" if manifest.arrays is None else "arrays",
        samples=manifest.samples,
        images=manifest.images,
        shards=len(manifest.shards),
        bytes=manifest.bytes,
        rejected=manifest.rejected,
        mean_pixels=float(pixels.mean()) if len(pixels) else None,
        fields=tuple(fields),
        arrays=() if manifest.arrays is None else tuple(sorted(manifest.arrays.files)),
    )


def _pixels(found: FoundDataset) -> Iterator[np.ndarray]:
    """Yield the pixels of the images of some shards, spread over the dataset: float64 [images]."""
    shards = [each for each in found.manifest.shards if each.images and each.samples <= _LARGEST]
    chosen = np.linspace(0, len(shards) - 1, min(_LOOKED_AT, len(shards))).astype(int)
    for shard in (shards[number] for number in chosen.tolist()):
        if isinstance(found.home, Path):
            table = read_index(found.home / shard.index, sha256=shard.index_sha256)
        else:
            content, name = found.home.read(shard.index), found.home.url_of(shard.index)
            table = parse_index(content, name, sha256=shard.index_sha256)
        width, height = (pc.list_flatten(table[f"image_{side}"]) for side in ("width", "height"))
        yield width.to_numpy().astype(np.float64) * height.to_numpy()
