"""Images per second of loaders that do the same work on the same machine.

JPEG to RGB, 336x336 antialiased, batches of 32; as float32 in ImageNet's normalisation or as uint8,
with the caption of each image. A rate begins after as many batches as there are workers, when each
has its next one begun; the time to an epoch's first batch is the start-up. The two limits are the
kernels alone, without files, order, batches or anything else around them.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from benchmarks import kernels
from benchmarks.common import Contestant, Run, chosen, compete, machine, parse, report
from benchmarks.data import Photos, packed, photographs
from datapipe import ImageSpec, make_loader

BATCH = 32
SIDE = 336
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
_SCALE = torch.tensor([1 / (255 * std) for std in STD]).view(3, 1, 1)
_SHIFT = torch.tensor([-mean / std for mean, std in zip(MEAN, STD, strict=True)]).view(3, 1, 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.loaders",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dtype", choices=("float32", "uint8"), default="float32")
    options = parse(parser, samples=1024, rounds=5)
    photos = photographs(options.samples)
    jpegs, shards = photos.read(), packed(photos)
    where = machine("torch", "datapipe", "webdataset", "pillow", "simplejpeg", cache="warm")
    entries = contestants(
        photos, jpegs, shards, workers=options.workers, normalized=options.dtype == "float32"
    )
    results = compete(chosen(entries, options.only), options.rounds)
    report(
        f"Loaders: {photos} -> {SIDE}x{SIDE} antialiased, batches of {BATCH}, {options.dtype}"
        f"{', ImageNet-normalised' * (options.dtype == 'float32')}; {options.workers} workers "
        f"each, {options.rounds} rounds",
        results,
        where=where,
        references=("limit: kernels", "torch"),
        unit="img/s",
        path=options.json,
    )


def contestants(
    photos: Photos, jpegs: list[bytes], shards: Path, *, workers: int, normalized: bool
) -> list[Contestant]:
    """All that are compared, ours first and the limits last."""
    spec = ImageSpec(size=SIDE, normalize="imagenet" if normalized else None)
    pillow = partial(read_pillow, normalized=normalized)
    decode = partial(kernels.decode, jpegs, workers)
    place = partial(kernels.decode_and_place, jpegs, workers, spec=spec, batch_size=BATCH)
    return [
        Contestant(
            name="datapipe",
            make=partial(make_datapipe, shards, spec, workers),
            note="threads; shards",
        ),
        Contestant(
            name="torch",
            make=partial(make_torch, photos, pillow, workers),
            note="DataLoader + Pillow, processes; loose files",
        ),
        Contestant(
            name="webdataset",
            make=partial(make_webdataset, shards, pillow, workers),
            note="WebLoader + Pillow, processes; shards",
        ),
        Contestant(
            name="limit: decode",
            make=lambda: decode,
            note="threads; libjpeg-turbo alone, from memory",
        ),
        Contestant(
            name="limit: kernels",
            make=lambda: place,
            note="threads; decode, resize, normalise into reused batches, from memory",
        ),
    ]


def make_datapipe(shards: Path, spec: ImageSpec, workers: int) -> Callable[[], Run]:
    loader = make_loader(shards, batch_size=BATCH, image=spec, num_workers=workers, drop_last=True)
    return partial(time_epoch, loader, lambda batch: len(batch["pixel_values"]), skip=workers)


def make_torch(
    photos: Photos, pillow: Callable[[bytes], Tensor], workers: int
) -> Callable[[], Run]:
    loader = DataLoader(
        LooseFiles(photos.paths(), pillow),
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        drop_last=True,
    )
    return partial(time_epoch, loader, lambda batch: len(batch[0]), skip=workers)


def make_webdataset(
    shards: Path, pillow: Callable[[bytes], Tensor], workers: int
) -> Callable[[], Run]:
    import webdataset

    urls = sorted(str(path) for path in shards.glob("*.tar"))
    # Batches are made in the workers, and by torch's collate, which fills shared memory directly.
    dataset = (
        webdataset.WebDataset(urls, shardshuffle=len(urls))
        .shuffle(100)
        .to_tuple("jpg", "txt", "__key__")
        .map_tuple(pillow, bytes.decode, str)
        .batched(BATCH, collation_fn=default_collate)
    )
    loader = webdataset.WebLoader(
        dataset, batch_size=None, num_workers=workers, persistent_workers=True
    )
    return partial(time_epoch, loader, lambda batch: len(batch[0]), skip=workers)


class LooseFiles(Dataset[tuple[Tensor, str, str]]):
    """What a PyTorch user writes for a folder of images with captions."""

    def __init__(self, paths: list[Path], pillow: Callable[[bytes], Tensor]) -> None:
        self.paths = [str(path) for path in paths]
        self.pillow = pillow

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, str, str]:
        stem, _ = os.path.splitext(self.paths[index])
        with open(self.paths[index], "rb") as image, open(stem + ".txt", "rb") as text:
            return self.pillow(image.read()), text.read().decode(), stem


def read_pillow(data: bytes, *, normalized: bool) -> Tensor:
    """Pillow's decoder and its antialiased bilinear filter: [3, SIDE, SIDE]."""
    with Image.open(io.BytesIO(data)) as image:
        small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1)
    if not normalized:
        return pixels.contiguous()
    planes = pixels.to(torch.float32, memory_format=torch.contiguous_format)
    return planes.mul_(_SCALE).add_(_SHIFT)


def time_epoch(loader: Iterable[Any], size: Callable[[Any], int], *, skip: int) -> Run:
    """Run through one epoch, counting from the end of the `skip`-th batch on."""
    begun = time.perf_counter()
    images = 0
    startup = since = 0.0
    for number, batch in enumerate(loader, start=1):
        now = time.perf_counter()
        startup = startup or now - begun
        if number > skip:
            images += size(batch)
        elif number == skip:
            since = now
    assert images, "the epoch is too short to be timed: take more --samples"
    return Run(samples=images, seconds=time.perf_counter() - since, startup=startup)


if __name__ == "__main__":
    main()
