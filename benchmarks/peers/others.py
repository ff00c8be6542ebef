"""Loaders of others on the same photographs. Each function imports the packages that it needs."""

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from benchmarks.common import Run, made_once
from benchmarks.peers.work import BATCH, MEAN, SIDE, STD, Task, normalize

PACKAGES = {
    "torch_pillow": ("torch", "pillow"),
    "webdataset_pillow": ("webdataset", "torch", "pillow"),
    "litdata_pillow": ("litdata", "torch", "pillow"),
    "mosaic_pillow": ("mosaicml-streaming", "torch", "pillow"),
    "spdl_ffmpeg": ("spdl", "torch"),
    "dali_cpu": ("nvidia-dali-cuda130", "torch"),
}
_SHARDS = 8  # of LitData and of Streaming, as many as datapipe has

Sample = tuple[Tensor, str, str]
"""Image, caption and key."""


def torch_pillow(task: Task) -> Callable[[], Run]:
    """Torch's DataLoader with Pillow, from loose files."""
    loader = DataLoader(
        LooseFiles(task),
        batch_size=BATCH,
        shuffle=True,
        num_workers=task.workers,
        persistent_workers=True,
        drop_last=True,
        collate_fn=padded if task.mixed else None,
    )
    return task.epochs(loader)


class LooseFiles(Dataset[Sample]):
    """Dataset of a folder of images with captions, as PyTorch users write it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.paths = task.paths()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Sample:
        return self.task.sample(self.paths[index])


def padded(samples: list[Sample]) -> tuple[Tensor, list[str], list[str]]:
    """Images of several sizes as [B, 3, H, W] of the largest, zeros to the right and below."""
    images = [image for image, _, _ in samples]
    height, width = (max(image.shape[axis] for image in images) for axis in (1, 2))
    shape = (len(images), 3, height, width)
    # In shared memory from the start, as torch's own collate does it in a worker: the batch is then
    # handed over without a copy.
    size = torch.Size(shape).numel() * images[0].element_size()
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    batch = torch.empty(0, dtype=images[0].dtype).set_(storage, 0, shape)  # type: ignore[call-overload]
    for place, image in zip(batch, images, strict=True):
        _, rows, columns = image.shape
        place[:, :rows, :columns] = image
        place[:, rows:] = 0
        place[:, :rows, columns:] = 0
    return batch, [text for _, text, _ in samples], [key for _, _, key in samples]


def webdataset_pillow(task: Task) -> Callable[[], Run]:
    """Webdataset's WebLoader with Pillow, from the shards that datapipe reads."""
    import webdataset

    urls = sorted(str(path) for path in Path(task.shards).glob("*.tar"))
    # Batches are made in the workers, and by torch's collate, which fills shared memory directly.
    dataset = (
        webdataset.WebDataset(urls, shardshuffle=len(urls))
        .shuffle(100)
        .to_tuple("jpg", "txt", "__key__")
        .map_tuple(task.pillow, bytes.decode, str)
        .batched(BATCH, collation_fn=default_collate, partial=False)
    )
    loader = webdataset.WebLoader(
        dataset, batch_size=None, num_workers=task.workers, persistent_workers=True
    )
    return task.epochs(loader)


def litdata_pillow(task: Task) -> Callable[[], Run]:
    """LitData's StreamingDataLoader with Pillow, from its own chunks of the same JPEG bytes."""
    import litdata

    def write(folder: Path) -> None:
        size = -(-len(task.paths()) // _SHARDS)
        given = {"inputs": task.paths(), "output_dir": str(folder), "chunk_size": size}
        litdata.optimize(fn=read, num_workers=1, verbose=False, **given)

    folder = made_once(Path(task.forms) / "litdata", write)
    dataset = litdata.StreamingDataset(
        str(folder), shuffle=True, drop_last=True, transform=partial(decode, task)
    )
    loader = litdata.StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=task.workers, persistent_workers=True
    )
    return task.epochs(loader)


def read(path: str) -> dict[str, Any]:
    """Return what LitData and Streaming store of a photograph."""
    image = Path(path)
    text = image.with_suffix(".txt").read_text()
    return {"jpg": image.read_bytes(), "txt": text, "key": image.stem}


def decode(task: Task, sample: dict[str, Any]) -> Sample:
    return task.pillow(sample["jpg"]), sample["txt"], sample["key"]


def mosaic_pillow(task: Task) -> Callable[[], Run]:
    """MosaicML Streaming with Pillow, from its own shards of the same JPEG bytes."""
    import benchmarks.peers.no_torchvision  # noqa: F401  # isort: skip
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    class Photos(StreamingDataset):  # type: ignore[misc]
        """Dataset that decodes in `__getitem__`, as its documentation does."""

        def __getitem__(self, index: int) -> Sample:
            return decode(task, super().__getitem__(index))

    def write(folder: Path) -> None:
        columns = {"jpg": "bytes", "txt": "str", "key": "str"}
        limit = sum(os.path.getsize(path) for path in task.paths()) // _SHARDS
        # Streaming wants the folder not to exist.
        with MDSWriter(out=str(folder), columns=columns, size_limit=limit, exist_ok=True) as out:
            for path in task.paths():
                out.write(read(path))

    folder = made_once(Path(task.forms) / "mosaic", write)
    dataset = Photos(local=str(folder), shuffle=True, batch_size=BATCH)
    workers = {"num_workers": task.workers, "persistent_workers": True}
    return task.epochs(StreamingDataLoader(dataset, batch_size=BATCH, drop_last=True, **workers))


def spdl_ffmpeg(task: Task) -> Callable[[], Run]:
    """SPDL: threads that decode and resize whole batches with FFmpeg, from loose files."""
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    # FFmpeg widens its filter when it makes an image smaller, so this is antialiased.
    filters = spdl.io.get_video_filter_desc(
        scale_width=SIDE, scale_height=SIDE, scale_algo="bilinear", scale_mode=None
    )
    paths, order = task.paths(), random.Random(0)
    torch.set_num_threads(1)  # of each of the threads that normalise

    def load(batch: list[str]) -> tuple[Tensor, list[str], list[str]]:
        buffer = spdl.io.load_image_batch(batch, width=None, height=None, filter_desc=filters)
        pixels = spdl.io.to_torch(buffer).permute(0, 3, 1, 2)
        keys = [os.path.splitext(path)[0] for path in batch]
        texts = []
        for key in keys:
            with open(key + ".txt", "rb") as file:
                texts.append(file.read().decode())
        return normalize(pixels) if task.normalized else pixels, texts, keys

    class Epochs:
        """A new pipeline for each epoch, as SPDL's own DataLoader makes one."""

        def __iter__(self) -> Iterator[Any]:
            order.shuffle(paths)
            builder: Any = PipelineBuilder()
            builder.add_source(paths).aggregate(BATCH, drop_last=True)
            builder.pipe(load, concurrency=task.workers).add_sink(buffer_size=3)
            pipeline = builder.build(num_threads=task.workers)
            with pipeline.auto_stop():
                yield from pipeline.get_iterator()

    return task.epochs(Epochs())


def dali_cpu(task: Task, *, antialias: bool) -> Callable[[], Run]:
    """DALI on the CPU: its reader, decoder and resize, from loose files."""
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import Pipeline
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    pipeline: Any = Pipeline(  # type: ignore[no-untyped-call]
        batch_size=BATCH, num_threads=task.workers, device_id=None, prefetch_queue_depth=2
    )
    with pipeline:
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
            mean, std = ([255 * value for value in values] for values in (MEAN, STD))
            images = fn.crop_mirror_normalize(
                images, dtype=types.DALIDataType.FLOAT, output_layout="CHW", mean=mean, std=std
            )
        pipeline.set_outputs(images, numbers)
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
