"""MosaicML Streaming with Pillow, from its own shards of the same JPEG bytes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

import benchmarks.peers.no_torchvision  # noqa: F401  # isort: skip
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

from benchmarks.common import Run
from benchmarks.peers.work import BATCH, Task

PACKAGES = ("mosaicml-streaming", "torch", "pillow")
_COLUMNS = {"jpg": "bytes", "txt": "str", "key": "str"}
_SHARDS = 8


def make(task: Task) -> Callable[[], Run]:
    dataset = Photos(task, task.form("mosaic", partial(write, task)))
    workers = {"num_workers": task.workers, "persistent_workers": True}
    loader = StreamingDataLoader(dataset, batch_size=BATCH, drop_last=True, **workers)
    return task.epochs(loader)


class Photos(StreamingDataset):  # type: ignore[misc]
    """Dataset that decodes in `__getitem__`, as its documentation does."""

    def __init__(self, task: Task, folder: Path) -> None:
        super().__init__(local=str(folder), shuffle=True, batch_size=BATCH)
        self.task = task

    def __getitem__(self, index: int) -> tuple[Tensor, str, str]:
        sample: dict[str, Any] = super().__getitem__(index)
        return self.task.pillow(sample["jpg"]), sample["txt"], sample["key"]


def write(task: Task, folder: Path) -> None:
    paths = [Path(path) for path in task.paths()]
    limit = sum(path.stat().st_size for path in paths) // _SHARDS
    # Streaming wants the folder not to exist.
    with MDSWriter(out=str(folder), columns=_COLUMNS, size_limit=limit, exist_ok=True) as out:
        for path in paths:
            text = path.with_suffix(".txt").read_text()
            out.write({"jpg": path.read_bytes(), "txt": text, "key": path.stem})
