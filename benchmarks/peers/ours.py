"""datapipe, from its shards."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.common import Run
from benchmarks.peers.work import BATCH, MAX_PIXELS, MIN_PIXELS, MULTIPLE, SIDE, Task
from datapipe import ImageSpec, make_loader
from datapipe.decode.normalize import load_kernel

PACKAGES = ("datapipe", "torch", "simplejpeg")


def make(task: Task) -> Callable[[], Run]:
    load_kernel()  # else a run begins without it
    loader = make_loader(
        task.shards,
        batch_size=BATCH,
        image=image_spec(task),
        num_workers=task.workers,
        drop_last=True,
    )
    return partial(task.time, loader, lambda batch: len(batch["pixel_values"]), skip=task.workers)


def image_spec(task: Task) -> ImageSpec:
    """What the task asks for, as a user of datapipe says it."""
    normalize = "imagenet" if task.normalized else None
    if not task.mixed:
        return ImageSpec(size=SIDE, normalize=normalize)
    return ImageSpec(
        resize="dynamic",
        patch=MULTIPLE // 2,
        merge=2,
        min_pixels=MIN_PIXELS,
        max_pixels=MAX_PIXELS,
        normalize=normalize,
        scaled_decode=True,  # as Pillow's draft mode
    )
