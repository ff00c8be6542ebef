"""LitData's StreamingDataLoader with Pillow, from its own chunks of the same JPEG bytes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import litdata
from torch import Tensor

from benchmarks.common import Run
from benchmarks.peers.work import BATCH, Task

PACKAGES = ("litdata", "torch", "pillow")
_CHUNKS = 8  # as many as there are shards


def make(task: Task) -> Callable[[], Run]:
    folder = task.form("litdata", partial(write, task))
    dataset = litdata.StreamingDataset(
        str(folder), shuffle=True, drop_last=True, transform=partial(decode, task)
    )
    loader = litdata.StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=task.workers, persistent_workers=True
    )
    return task.epochs(loader)


def write(task: Task, folder: Path) -> None:
    paths = task.paths()
    litdata.optimize(
        fn=read,
        inputs=paths,
        output_dir=str(folder),
        chunk_size=-(-len(paths) // _CHUNKS),
        num_workers=1,
        verbose=False,
    )


def read(path: str) -> dict[str, Any]:
    image = Path(path)
    text = image.with_suffix(".txt").read_text()
    return {"jpg": image.read_bytes(), "txt": text, "key": image.stem}


def decode(task: Task, sample: dict[str, Any]) -> tuple[Tensor, str, str]:
    return task.pillow(sample["jpg"]), sample["txt"], sample["key"]
