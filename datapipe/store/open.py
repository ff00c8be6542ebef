"""Opens the store that fits where a dataset lies."""

from __future__ import annotations

from datapipe.index.dataset import Dataset
from datapipe.remote.folder import RemoteFolder
from datapipe.store.arrays import ArrayStore, refuse_remote
from datapipe.store.protocol import Store
from datapipe.store.remote import RemoteStore
from datapipe.store.shards import ShardStore


def open_store(dataset: Dataset) -> Store:
    """The bytes of a dataset's samples.

    Raises:
        PlanError: arrays lie elsewhere.
    """
    refuse_remote(dataset)
    if dataset.manifest.arrays is not None and not isinstance(dataset.folder, RemoteFolder):
        return ArrayStore(dataset.folder)
    names = [shard.name for shard in dataset.manifest.shards]
    if isinstance(dataset.folder, RemoteFolder):
        return RemoteStore(dataset.folder, names)
    return ShardStore(dataset.folder, names)
