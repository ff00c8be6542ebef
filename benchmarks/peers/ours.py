"""datapipe, from its shards or arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.common import Run
from benchmarks.peers.work import BATCH, MAX_PIXELS, MIN_PIXELS, MULTIPLE, SIDE, Task
from datapipe import CacheSpec, ImageSpec, convert_dataset, make_loader
from datapipe.decode.normalize import load_kernel

PACKAGES = ("datapipe", "torch", "simplejpeg")


def make(
    task: Task, *, cached: str = "", arrays: bool = False, epochs: int = 1
) -> Callable[[], Run]:
    """With `cached`, such as "4GB", what decoded images may take in memory."""
    load_kernel()  # else a run begins without it
    loader = make_loader(
        arrays_of(task) if arrays else task.shards,
        batch_size=BATCH,
        image=image_spec(task),
        num_workers=task.workers,
        drop_last=True,
        epochs=epochs,
        cache=CacheSpec(memory=cached) if cached else None,
    )
    return partial(task.time, loader, lambda batch: len(batch["pixel_values"]), skip=task.workers)


def arrays_of(task: Task) -> Path:
    """Return the photographs as arrays; convert them if they are missing."""
    out = Path(task.forms) / f"arrays-{SIDE}"
    convert_dataset(task.shards, out, image=image_spec(task))
    return out


def image_spec(task: Task) -> ImageSpec:
    """Return the `ImageSpec` of a task."""
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
