"""MosaicML Streaming with Pillow, from its own shards of the same JPEG bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

# Streaming imports two names of torchvision for datasets that are not used here, and the package
# index has no torchvision for the CPU build of torch.
_STUBS: dict[str, dict[str, Any]] = {
    "torchvision": {},
    "torchvision.datasets": {"VisionDataset": object},
    "torchvision.transforms": {},
    "torchvision.transforms.functional": {"to_tensor": None},
}
for _name, _content in _STUBS.items():
    _module = ModuleType(_name)
    _module.__spec__ = ModuleSpec(_name, None)
    vars(_module).update(_content)
    sys.modules[_name] = _module

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset  # noqa: E402

from benchmarks.common import Run  # noqa: E402
from benchmarks.peers.work import BATCH, Task  # noqa: E402

PACKAGES = ("mosaicml-streaming", "torch", "pillow")
_COLUMNS = {"jpg": "bytes", "txt": "str", "key": "str"}
_SHARDS = 8


def make(task: Task) -> Callable[[], Run]:
    dataset = Photos(task, task.form("mosaic", partial(write, task)))
    loader = StreamingDataLoader(
        dataset,
        batch_size=BATCH,
        num_workers=task.workers,
        persistent_workers=True,
        drop_last=True,
    )
    return partial(task.time, loader, lambda batch: len(batch[0]), skip=task.workers)


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
