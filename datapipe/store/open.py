"""Choice of the store that fits where a dataset is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from datapipe.errors import PlanError
from datapipe.index.dataset import Dataset
from datapipe.index.mixed_dataset import DatasetPart, MixedDataset
from datapipe.remote.folder import RemoteFolder
from datapipe.store.arrays import ArrayStore
from datapipe.store.joined import JoinedStore
from datapipe.store.protocol import Store
from datapipe.store.remote import RemoteStore
from datapipe.store.shards import ShardStore


def open_store(dataset: Dataset) -> Store:
    """Return the store of a dataset's samples.

    Raises:
        PlanError: the arrays are remote.
    """
    if isinstance(dataset, MixedDataset):
        shards = [len(part.counts.shard_samples) for part in dataset.parts]
        return JoinedStore(
            partial(_open_part, dataset.parts),
            np.concatenate(([0], np.cumsum(shards, dtype=np.int64))),
            [part.is_remote for part in dataset.parts],
        )
    names = [shard.name for shard in dataset.manifest.shards]
    if not isinstance(dataset.folder, RemoteFolder):
        is_array = dataset.manifest.arrays is not None
        return ArrayStore(dataset.folder) if is_array else ShardStore(dataset.folder, names)
    if dataset.manifest.arrays is not None:
        raise PlanError(
            f"{dataset.folder} holds arrays, which are mapped and have to be here; copy them, or "
            "read the shards that they came from"
        )
    return RemoteStore(dataset.folder, names)


def _open_part(parts: Sequence[DatasetPart], number: int) -> Store:
    return open_store(parts[number].dataset())
