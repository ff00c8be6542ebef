"""A thousand epochs with a cache: whether memory, threads or open files grow."""

import os
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from benchmarks.common import machine, show, write_json
from benchmarks.data import packed, photographs
from datapipe import CacheSpec, ImageSpec, make_loader
from datapipe.progress import Progress

_EPOCHS = 1000
_LOOKS = (10, 100, 250, 500, 750, 1000)


def days(path: Path | None) -> None:
    """Print what a process has after so many epochs, and write it as JSON.

    A day of ImageNet at 1,400 images/s is 94 epochs; these are a thousand of a small dataset, with
    a memory that holds a half and a disk that holds all of it.
    """
    shards = packed(photographs(256))
    rows: list[dict[str, Any]] = []
    process = psutil.Process()
    with TemporaryDirectory() as folder:
        image = ImageSpec(size=96, normalize="imagenet")
        cache = CacheSpec(memory="4MB", disk=folder, policy="next-use")
        loader = make_loader(shards, batch_size=32, image=image, cache=cache, num_workers=2)
        with Progress("training on", unit="epoch", total=_EPOCHS) as progress:
            for epoch in range(1, _EPOCHS + 1):
                for batch in loader:
                    del batch
                progress.advance()
                if epoch in _LOOKS:
                    files = len(os.listdir("/proc/self/fd"))
                    row = {"epochs": epoch, "memory_mb": process.memory_info().rss / 1e6}
                    rows.append(row | {"threads": threading.active_count(), "files": files})
        stats = {name: vars(tier) for name, tier in loader.stats().items()}
        loader.close()
    show("A thousand epochs with a cache", rows)
    print(stats)
    write_json(path, {"title": "cache days", "where": machine(cache="warm"), "rows": rows})
