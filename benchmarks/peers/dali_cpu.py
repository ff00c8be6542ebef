"""DALI on the CPU: its reader, decoder and resize, from loose files."""

from collections.abc import Callable
from typing import Any

from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from benchmarks.common import Run
from benchmarks.peers.work import BATCH, MEAN, SIDE, STD, Task

PACKAGES = ("nvidia-dali-cuda130", "torch")


def make(task: Task, *, antialias: bool) -> Callable[[], Run]:
    pipeline: Any = Pipeline(  # type: ignore[no-untyped-call]
        batch_size=BATCH, num_threads=task.workers, device_id=None, prefetch_queue_depth=2
    )
    with pipeline:
        pipeline.set_outputs(*graph(task, antialias))
    loader = DALIGenericIterator(
        [pipeline],
        ["pixels", "label"],
        reader_name="files",
        last_batch_policy=LastBatchPolicy.DROP,
        auto_reset=True,
        prepare_first_batch=False,
    )
    # Two batches of an epoch are made when the one before it ends; they and the one that is then
    # under way are not counted.
    return task.epochs(loader, lambda batch: len(batch[0]["pixels"]), skip=task.workers + 1)


def graph(task: Task, antialias: bool) -> tuple[Any, Any]:
    files = task.paths()
    encoded, numbers = fn.readers.file(
        files=files, labels=list(range(len(files))), random_shuffle=True, name="files"
    )
    images: Any = fn.decoders.image(encoded, output_type=types.DALIImageType.RGB)
    images = fn.resize(
        images,
        resize_x=SIDE,
        resize_y=SIDE,
        interp_type=types.DALIInterpType.INTERP_LINEAR,
        antialias=antialias,
    )
    if task.normalized:
        images = fn.crop_mirror_normalize(
            images,
            dtype=types.DALIDataType.FLOAT,
            output_layout="CHW",
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
        )
    return images, numbers
