"""Choice of the store that fits where a dataset is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from datapipe.errors import PlanError
from datapipe.index.dataset import Dataset
from datapipe.index.dataset_mixture import DatasetMixture, DatasetPart
from datapipe.remote.folder import RemoteFolder
from datapipe.store.arrays import ArrayDataset, ArrayDatasets, ArrayStore, open_images
from datapipe.store.mixture_arrays import MixtureArrays
from datapipe.store.mixture_store import MixtureStore
from datapipe.store.protocol import Store
from datapipe.store.remote import RemoteStore
from datapipe.store.shards import ShardStore


def open_store(dataset: Dataset) -> Store:
    """Return the store of a dataset's samples.

    Raises:
        PlanError: arrays are behind a URL.
    """
    if isinstance(dataset, DatasetMixture):
        shards = [len(part.counts.shard_samples) for part in dataset.parts]
        return MixtureStore(
            partial(_open_part, dataset.parts),
            np.concatenate(([0], np.cumsum(shards, dtype=np.int64))),
            [part.is_remote for part in dataset.parts],
        )
    names = [shard.name for shard in dataset.manifest.shards]
    if not isinstance(dataset.folder, RemoteFolder):
        is_array = dataset.manifest.arrays is not None
        return ArrayStore(dataset.folder) if is_array else ShardStore(dataset.folder, names)
    check_arrays_are_here(dataset)
    return RemoteStore(dataset.folder, names)


def open_arrays(dataset: Dataset, store: Store, *, images: bool) -> ArrayDatasets | None:
    """Return the datasets of arrays; None if all are shards.

    Args:
        store: of the dataset.
        images: whether images are wanted.
    """
    if isinstance(dataset, DatasetMixture):
        if all(part.arrays is None for part in dataset.parts):
            return None
        assert isinstance(store, MixtureStore)
        return MixtureArrays(dataset, store, images=images)
    if not isinstance(store, ArrayStore):
        return None
    held = open_images(dataset) if images else None
    return ArrayDataset(columns=dataset.columns, texts=store, images=held)


def check_arrays_are_here(dataset: Dataset) -> None:
    """Refuse arrays behind a URL.

    Raises:
        PlanError: the dataset is such arrays.
    """
    if dataset.manifest.arrays is not None and isinstance(dataset.folder, RemoteFolder):
        raise PlanError(
            f"{dataset.folder} holds arrays, which are mapped and have to be here; copy them, or "
            "read the shards that they came from"
        )


def _open_part(parts: Sequence[DatasetPart], number: int) -> Store:
    return open_store(parts[number].dataset())
