"""Choice of the store that fits where a dataset is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from datapipe.errors import PlanError
from datapipe.index.dataset import Dataset
from datapipe.index.mixture import DatasetPart, edges_of
from datapipe.remote.folder import RemoteFolder
from datapipe.store.arrays import ArrayStore
from datapipe.store.mixture import MixtureArrays, MixtureStore
from datapipe.store.protocol import Store
from datapipe.store.remote import RemoteStore
from datapipe.store.shards import ShardStore


def open_store(dataset: Dataset) -> MixtureStore:
    """Return the store of a dataset's samples; raise `PlanError` for arrays behind a URL."""
    for part in dataset.parts:
        if part.arrays is not None and part.is_remote:
            check_arrays_are_here(part.dataset())
    return MixtureStore(
        partial(_open_part, dataset.parts),
        edges_of([len(part.counts.shard_samples) for part in dataset.parts]),
        [part.is_remote for part in dataset.parts],
    )


def open_arrays(dataset: Dataset, store: MixtureStore, *, images: bool) -> MixtureArrays | None:
    """Return the datasets of arrays, with their images if wanted; None if all are shards."""
    if all(part.arrays is None for part in dataset.parts):
        return None
    return MixtureArrays(dataset.parts, store, images=images)


def check_arrays_are_here(dataset: Dataset) -> None:
    """Raise `PlanError` for arrays behind a URL."""
    if dataset.manifest.arrays is not None and isinstance(dataset.folder, RemoteFolder):
        raise PlanError(
            f"{dataset.folder} holds arrays, which are mapped and must be local; copy them, or "
            "read the shards that they were made from"
        )


def _open_part(parts: Sequence[DatasetPart], number: int) -> Store:
    dataset = parts[number].dataset()
    names = [shard.name for shard in dataset.manifest.shards]
    if isinstance(dataset.folder, RemoteFolder):
        return RemoteStore(dataset.folder, names)
    is_array = dataset.manifest.arrays is not None
    return ArrayStore(dataset.folder) if is_array else ShardStore(dataset.folder, names)
