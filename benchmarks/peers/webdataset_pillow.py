"""webdataset's WebLoader with Pillow, from the shards that datapipe reads."""

from collections.abc import Callable
from pathlib import Path

import webdataset
from torch.utils.data import default_collate

from benchmarks.common import Run
from benchmarks.peers.work import BATCH, Task

PACKAGES = ("webdataset", "torch", "pillow")


def make(task: Task) -> Callable[[], Run]:
    urls = sorted(str(path) for path in Path(task.shards).glob("*.tar"))
    # Batches are made in the workers, and by torch's collate, which fills shared memory directly.
    dataset = (
        webdataset.WebDataset(urls, shardshuffle=len(urls))
        .shuffle(100)
        .to_tuple("jpg", "txt", "__key__")
        .map_tuple(task.pillow, bytes.decode, str)
        .batched(BATCH, collation_fn=default_collate, partial=False)
    )
    loader = webdataset.WebLoader(
        dataset, batch_size=None, num_workers=task.workers, persistent_workers=True
    )
    return task.epochs(loader)
