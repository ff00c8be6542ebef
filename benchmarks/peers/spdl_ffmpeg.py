"""SPDL: threads that decode and resize whole batches with FFmpeg, from loose files."""

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import spdl.io
import torch
from spdl.pipeline import PipelineBuilder
from torch import Tensor

from benchmarks.common import Run
from benchmarks.peers.work import BATCH, SIDE, Task, normalize

PACKAGES = ("spdl", "torch")
Batch = tuple[Tensor, list[str], list[str]]


def make(task: Task) -> Callable[[], Run]:
    return task.epochs(Epochs(task))


class Epochs:
    """A new pipeline for each epoch, as SPDL's own DataLoader makes one."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.paths = task.paths()
        # FFmpeg widens its filter when it makes an image smaller, so this is antialiased.
        self.filters = spdl.io.get_video_filter_desc(
            scale_width=SIDE, scale_height=SIDE, scale_algo="bilinear", scale_mode=None
        )
        self.order = random.Random(0)
        torch.set_num_threads(1)  # of each of the threads that normalise

    def __iter__(self) -> Iterator[Batch]:
        self.order.shuffle(self.paths)
        builder: Any = PipelineBuilder()
        builder.add_source(self.paths).aggregate(BATCH, drop_last=True)
        builder.pipe(self.load, concurrency=self.task.workers).add_sink(buffer_size=3)
        pipeline = builder.build(num_threads=self.task.workers)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    def load(self, paths: list[str]) -> Batch:
        buffer = spdl.io.load_image_batch(paths, width=None, height=None, filter_desc=self.filters)
        pixels = spdl.io.to_torch(buffer).permute(0, 3, 1, 2)
        keys = [os.path.splitext(path)[0] for path in paths]
        texts = []
        for key in keys:
            with open(key + ".txt", "rb") as file:
                texts.append(file.read().decode())
        return normalize(pixels) if self.task.normalized else pixels, texts, keys
