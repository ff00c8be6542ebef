"""Concatenation of datasets."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

import numpy as np

from datapipe.curate.sources import Chosen, copy_chosen, open_source
from datapipe.curate.spec import CopyReport, CopySpec
from datapipe.declared import Word, checked
from datapipe.errors import PackError


@checked(PackError)
def merge_datasets(
    datasets: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    *,
    prefixes: Sequence[Word] = (),
    output: CopySpec = CopySpec(),  # noqa: B008  (frozen)
) -> CopyReport:
    """Copy the samples of datasets into new shards, one dataset after the other.

    Keys must be unique. Datasets with equal keys, such as the ordinals of two packs, are refused
    without `prefixes` or `CopySpec(renumber=True)`. You need not merge datasets to train on
    several: `make_loader` takes a list.

    Args:
        datasets: folders or URLs that `datapipe pack` wrote, or folders of someone else's tars.
        out: folder for the shards; new, or that of the same merge interrupted.
        prefixes: texts that the keys of each dataset begin with, such as ["coco-", "chats-"].
        output: options of the new shards.

    Raises:
        PackError: keys belong to several samples, the output belongs to something else, or the
            disk is full.
        IndexMismatch: there is no finished dataset, or it changed.
        StoreError: a member cannot be read, or is damaged.

    Examples:
        >>> datapipe.merge_datasets(["shards/", "shards/"], "all/", prefixes=["a-", "b-"]).samples
        16
    """
    if not datasets:
        raise PackError("datasets is empty; give at least one")
    if prefixes and len(prefixes) != len(datasets):
        raise PackError(f"{len(prefixes)} prefixes for {len(datasets)} datasets; give one for each")
    if prefixes and output.renumber:
        raise PackError("prefixes extend the keys of samples, renumber replaces them; give one")
    if dotted := [prefix for prefix in prefixes if "." in prefix]:
        raise PackError(
            f"prefix {dotted[0]!r}: a key ends at its first dot for readers of tars, which would "
            "take all of its samples for one; give a text without dots"
        )
    opened = [open_source(path, out) for path in datasets]
    chosen = [
        Chosen(dataset=dataset, samples=np.arange(len(dataset), dtype=np.int64), prefix=prefix)
        for dataset, prefix in zip(opened, prefixes or [""] * len(opened), strict=True)
    ]
    return copy_chosen(chosen, out, "merge", {"prefixes": list(prefixes) or None}, output)
