"""datapipe, from its shards or arrays; and the limit of all loaders."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks import kernels
from benchmarks.common import Run
from benchmarks.peers.work import BATCH, MAX_PIXELS, MIN_PIXELS, MULTIPLE, SIDE, Task
from datapipe import CacheSpec, ImageSpec, convert_dataset, make_loader
from datapipe.decode.normalize import KERNEL

PACKAGES = {"loader": ("datapipe-vlm", "torch", "simplejpeg"), "limit": ("torch", "simplejpeg")}


def loader(
    task: Task,
    *,
    cached: str = "",
    arrays: bool = False,
    epochs: int = 1,
    parts: Mapping[str, int] | None = None,
) -> Callable[[], Run]:
    """Open the photographs, or a mixture of `parts`: folders that have them together, and weights.

    `cached` is the memory for decoded images, such as "4GB"; with `arrays` arrays are read and not
    shards; `epochs` are those of a round.
    """
    KERNEL.load()  # else a run begins without it
    source: Path | str | dict[str, int] = arrays_of(task) if arrays else task.shards
    if parts is not None:
        folders = [str(arrays_of(task, part)) if arrays else part for part in parts]
        source = dict(zip(folders, parts.values(), strict=True))
    opened = make_loader(
        source,
        batch_size=BATCH,
        image=image_spec(task),
        num_workers=task.workers,
        drop_last=True,
        epochs=epochs,
        cache=CacheSpec(memory=cached) if cached else None,
    )
    return task.epochs(opened, lambda batch: len(batch["pixel_values"]))


def limit(task: Task, *, which: Literal["decode", "kernels", "gather"]) -> Callable[[], Run]:
    """Return the kernels without files, order, batches or anything else: the loaders' limit."""
    KERNEL.load()  # else a run begins without it
    jpegs = [Path(path).read_bytes() for path in task.paths()]
    if which == "decode":
        return partial(kernels.decode, jpegs, task.workers)
    if which == "gather":
        return kernels.gather(len(jpegs), task.workers, side=SIDE, batch_size=BATCH)
    return kernels.decode_and_place(jpegs, task.workers, spec=image_spec(task), batch_size=BATCH)


def arrays_of(task: Task, part: str | None = None) -> Path:
    """Return the photographs, or those in a folder of shards, as arrays; convert missing ones."""
    out = Path(task.forms) / f"arrays-{SIDE}"
    if part is not None:
        out = Path(part).parent.with_name(f"arrays-{SIDE}") / Path(part).name
    convert_dataset(part or task.shards, out, image=image_spec(task))
    return out


def image_spec(task: Task) -> ImageSpec:
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
