"""Upper bound of all loaders: the kernels without files, order, batches or anything else."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks import kernels
from benchmarks.common import Run
from benchmarks.peers.ours import image_spec
from benchmarks.peers.work import BATCH, SIDE, Task
from datapipe.decode.normalize import KERNEL

PACKAGES = ("torch", "simplejpeg")


def make(task: Task, *, which: Literal["decode", "kernels", "gather"]) -> Callable[[], Run]:
    KERNEL.load()  # else a run begins without it
    jpegs = [Path(path).read_bytes() for path in task.paths()]
    if which == "decode":
        return partial(kernels.decode, jpegs, task.workers)
    if which == "gather":
        return kernels.gather(len(jpegs), task.workers, side=SIDE, batch_size=BATCH)
    return kernels.decode_and_place(jpegs, task.workers, spec=image_spec(task), batch_size=BATCH)
