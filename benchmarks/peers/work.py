"""The work that all loaders of the race do, and how it is timed.

Imported by every contestant's process, so it needs no more than torch, NumPy and Pillow.
"""

import io
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.common import Run

BATCH = 32
SIDE = 336
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

# Of the mixed sizes: Qwen2-VL's rule with at most 512 tokens of 28 x 28 pixels an image.
MULTIPLE = 28
MIN_PIXELS = 56 * 56
MAX_PIXELS = 512 * MULTIPLE * MULTIPLE

SCALE = torch.tensor([1 / (255 * std) for std in STD]).view(3, 1, 1)
SHIFT = torch.tensor([-mean / std for mean, std in zip(MEAN, STD, strict=True)]).view(3, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Task:
    """Task of a contestant.

    Attributes:
        raw: folder of loose `.jpg` files with a `.txt` beside each.
        shards: folder with the same photographs in WebDataset shards, packed by datapipe.
        forms: folder for the same photographs in the forms of peers, made once.
        dtype: "float32" in ImageNet's normalisation, or "uint8".
        workers: threads or processes.
        mixed: every image near its own size (`dynamic_size`) instead of SIDE x SIDE.
        steps: most batches of a round; None for the whole epoch.
    """

    raw: str
    shards: str
    forms: str
    dtype: str = "float32"
    workers: int = 2
    mixed: bool = False
    steps: int | None = None

    @property
    def normalized(self) -> bool:
        return self.dtype == "float32"

    def paths(self) -> list[str]:
        return sorted(map(str, Path(self.raw).rglob("*.jpg")))

    def pillow(self, data: bytes) -> Tensor:
        """Decode a JPEG to [3, height, width], by Pillow's decoder and its antialiased filter."""
        with Image.open(io.BytesIO(data)) as image:
            size = (SIDE, SIDE)
            if self.mixed:
                size = dynamic_size(*image.size)
                image.draft("RGB", size)  # decodes at 1/2 to 1/8 where that is large enough
            small = image.convert("RGB").resize(size, Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1)
        return normalize(pixels) if self.normalized else pixels.contiguous()

    def sample(self, path: str) -> tuple[Tensor, str, str]:
        """Return a photograph, its caption and its key, as a PyTorch user reads loose files."""
        stem, _ = os.path.splitext(path)
        with open(path, "rb") as image, open(stem + ".txt", "rb") as text:
            return self.pillow(image.read()), text.read().decode(), stem

    def epochs(
        self,
        loader: Iterable[Any],
        size: Callable[[Any], int] = lambda batch: len(batch[0]),
        *,
        skip: int | None = None,
    ) -> Callable[[], Run]:
        """Return what runs through one epoch, counted from the batch after the `skip`-th on.

        As many batches as there are workers are skipped by default.
        """
        skipped = self.workers if skip is None else skip
        return partial(time_epoch, loader, size, skip=skipped, steps=self.steps)


def time_epoch(
    loader: Iterable[Any], size: Callable[[Any], int], *, skip: int, steps: int | None = None
) -> Run:
    """Run through one epoch, of at most so many steps; count after the `skip`-th batch."""
    begun = time.perf_counter()
    images = 0
    startup = since = busy = 0.0
    for number, batch in enumerate(loader, start=1):
        now = time.perf_counter()
        startup = startup or now - begun
        if number > skip:
            images += size(batch)
        elif number == skip:
            since, busy = now, time.thread_time()
        if number == steps:
            break
    seconds, consumer = time.perf_counter() - since, time.thread_time() - busy
    assert images, "the epoch is too short to be timed: take more --samples"
    return Run(samples=images, seconds=seconds, startup=startup, consumer=consumer)


def normalize(pixels: Tensor) -> Tensor:
    """uint8 [..., 3, H, W] of any strides as contiguous float32 in ImageNet's normalisation."""
    planes = pixels.to(torch.float32, memory_format=torch.contiguous_format)
    return planes.mul_(SCALE).add_(SHIFT)


def dynamic_size(width: int, height: int) -> tuple[int, int]:
    """Return width and height by the rule of Qwen2-VL's image processor (`smart_resize`)."""
    across, down = (round(side / MULTIPLE) * MULTIPLE for side in (width, height))
    if across * down > MAX_PIXELS:
        scale = math.sqrt(width * height / MAX_PIXELS)
        across, down = (
            max(MULTIPLE, math.floor(side / scale / MULTIPLE) * MULTIPLE)
            for side in (width, height)
        )
    elif across * down < MIN_PIXELS:
        scale = math.sqrt(MIN_PIXELS / (width * height))
        across, down = (math.ceil(side * scale / MULTIPLE) * MULTIPLE for side in (width, height))
    return across, down
