"""FFCV in raw mode: images as they are in memory, of the size that is trained on, in its file."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import BytesField, RGBImageField
from ffcv.fields.rgb_image import SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import NormalizeImage, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

from benchmarks.common import Run
from benchmarks.peers.work import BATCH, MEAN, SIDE, STD, Task

PACKAGES = ("ffcv", "numba", "torch")
_FILE = "photos.beton"


def make(task: Task, *, epochs: int = 1) -> Callable[[], Run]:
    folder = task.form(f"ffcv-raw-{SIDE}", partial(write, task))
    pixels: list[Any] = [SimpleRGBImageDecoder()]
    if task.normalized:
        mean, std = (255 * np.array(values) for values in (MEAN, STD))
        pixels.append(NormalizeImage(mean, std, np.float32))
    # Channels stay last in memory, as FFCV's documentation has it: the form in which it is fastest.
    pixels += [ToTensor(), ToTorchImage(channels_last=True)]
    loader = Loader(
        str(folder / _FILE),
        batch_size=BATCH,
        num_workers=task.workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={"image": pixels},
    )
    return partial(
        task.time, Epochs(loader, epochs), lambda batch: len(batch[0]), skip=task.workers
    )


class Epochs:
    """Several epochs, one after another."""

    def __init__(self, loader: Any, epochs: int) -> None:
        self.loader, self.epochs = loader, epochs

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.epochs):
            yield from self.loader


def write(task: Task, folder: Path) -> None:
    fields = {"image": RGBImageField(write_mode="raw"), "txt": BytesField()}
    writer = DatasetWriter(str(folder / _FILE), fields, num_workers=1)
    writer.from_indexed_dataset(Resized(task))


class Resized:
    """Dataset for FFCV's writer: images of the size that is trained on, with captions."""

    def __init__(self, task: Task) -> None:
        self.paths = task.paths()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path = Path(self.paths[index])
        text = np.frombuffer(path.with_suffix(".txt").read_bytes(), np.uint8)
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            pixels = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return np.array(pixels), text
