"""Opens the store that fits where a dataset lies."""

from __future__ import annotations

from datapipe.index.dataset import Dataset
from datapipe.remote.folder import RemoteFolder
from datapipe.store.protocol import Store
from datapipe.store.remote import RemoteStore
from datapipe.store.shards import ShardStore


def open_store(dataset: Dataset) -> Store:
    """The bytes of a dataset's samples; no file is opened yet."""
    names = [shard.name for shard in dataset.manifest.shards]
    if isinstance(dataset.folder, RemoteFolder):
        return RemoteStore(dataset.folder, names)
    return ShardStore(dataset.folder, names)
