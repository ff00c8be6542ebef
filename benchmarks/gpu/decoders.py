"""Ways from a batch of JPEGs to a normalised tensor on a device, and the limits of DALI."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import cycle, repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import Absent
from datapipe import DaliOptions, ImageSpec
from datapipe.decode.batched import normalize_batch, resize_batch
from datapipe.decode.dali.graph import decoder_options
from datapipe.decode.transform import make_transform
from datapipe.errors import PlanError
from datapipe.loader.device.prefetcher import DevicePrefetcher, resolve_device

SIDE = 336
MEAN_STD = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SPEC = ImageSpec(size=SIDE, normalize=MEAN_STD)

_AHEAD, _AGAIN = 3, 4  # batches that the limit decodes ahead, and how often it decodes all


Decode = Callable[[Sequence[Sequence[bytes]]], Iterator[Any]]
"""Yields what becomes of each batch: float32 [n, 3, SIDE, SIDE] on the device.

What it queues on the device need not be done when it returns.
"""


@dataclass(frozen=True)
class Setting:
    batch: int
    threads: int
    options: DaliOptions = field(default_factory=DaliOptions)

    def __str__(self) -> str:
        default = DaliOptions()
        changed = [
            f"{name} {value:g}"
            for name, value in asdict(self.options).items()
            if value != getattr(default, name)
        ]
        return ", ".join([f"dali, batches of {self.batch}, {self.threads} threads", *changed])

    def entry(self, device: torch.device) -> Entry:
        return Entry(str(self), self.batch, partial(dali, device, self), "datapipe's graph", self)

    def variations(self) -> list[Setting]:
        """Return this setting, and others that differ from it in one option."""
        loads = (0.0, 0.12, 0.3, 0.5, 0.8, 1.0)
        changes: list[dict[str, Any]] = [
            {},
            *({"hw_decoder_load": load} for load in loads),
            *({"pipelines": count} for count in (1, 3, 4)),
            {"hybrid_huffman_threshold": 100_000},
            {"preallocate_width": 1024, "preallocate_height": 1024},
        ]
        return [replace(self, options=replace(self.options, **change)) for change in changes]


class Entry(NamedTuple):
    """A decoder of batches of some images, which has threads and memory while `make` is entered.

    `setting` is that of datapipe's own with DALI.
    """

    name: str
    batch: int
    make: Callable[[], AbstractContextManager[Decode]]
    note: str = ""
    setting: Setting | None = None


def kernels(device: torch.device, batch: int, threads: int) -> Entry:
    """Return datapipe's CPU kernels, the reference of all others."""
    note = f"datapipe's kernels on {threads} threads, uint8 copied, normalised on the device"
    return Entry("cpu", batch, partial(cpu_and_copy, device, threads), note)


def nvjpeg(device: torch.device, batch: int) -> Entry:
    note = "torchvision.io.decode_jpeg on the device, then datapipe.decode.batched"
    make = partial(torchvision_decoder, device)
    return Entry(f"nvjpeg, batches of {batch}", batch, lambda: nullcontext(make()), note)


def limits(device: torch.device, setting: Setting) -> list[Entry]:
    """Return DALI's own operators, with the options of a setting and with DALI's."""
    made = (
        ("decoding alone", {"resized": False}),
        ("decoding and resizing", {"resized": True}),
        ("decoding and resizing by its defaults", {"resized": True, "defaults": True}),
    )
    note = f"DALI's own operators, {_AHEAD} batches of {setting.batch} ahead, "
    note += f"{setting.threads} threads"
    make = partial(dali_limit, device, setting)
    return [
        Entry(f"limit: DALI, {name}", setting.batch, partial(make, **how), note)
        for name, how in made
    ]


@contextmanager
def cpu_and_copy(device: torch.device, threads: int) -> Iterator[Decode]:
    """Have the loader's kernels on threads, page-locked memory, and its way to the device."""
    transform = make_transform(ImageSpec(size=SIDE))
    feeder = DevicePrefetcher(device, mean_std=MEAN_STD)

    def place(data: bytes, out: Tensor) -> None:
        transform.place(transform.decode(data), out.numpy())

    def decode(batches: Sequence[Sequence[bytes]]) -> Iterator[Any]:
        for jpegs in batches:
            shape = (len(jpegs), 3, SIDE, SIDE)
            host = torch.empty(shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
            for _ in pool.map(place, jpegs, torch.split(host, 1)):
                pass
            yield feeder.receive(feeder.send({"pixel_values": host}))["pixel_values"]

    with ThreadPoolExecutor(threads, initializer=partial(torch.set_num_threads, 1)) as pool:
        yield decode


def torchvision_decoder(device: torch.device) -> Decode:
    """Return nvJPEG as torchvision has it; resized and normalised on the device."""
    io: Any = import_module("torchvision.io")

    def decode(batches: Sequence[Sequence[bytes]]) -> Iterator[Any]:
        for jpegs in batches:
            encoded = [torch.from_numpy(np.frombuffer(data, np.uint8).copy()) for data in jpegs]
            try:
                images = io.decode_jpeg(encoded, mode=io.ImageReadMode.RGB, device=device)
            except RuntimeError as error:
                # A build without nvJPEG is found out only here.
                raise Absent(f"torchvision cannot: {str(error).splitlines()[0]}") from error
            fitted = torch.cat([resize_batch(image[None], SIDE, SIDE) for image in images])
            yield normalize_batch(fitted, MEAN_STD, torch.float32)

    return decode


@contextmanager
def dali(device: torch.device, setting: Setting) -> Iterator[Decode]:
    """Have datapipe's decoder with DALI, as loaders have it."""
    from datapipe.decode.dali.decoder import DaliDecoder

    try:
        decoder = DaliDecoder(
            SPEC,
            device=resolve_device(device),
            batch_size=setting.batch,
            threads=setting.threads,
            options=setting.options,
        )
    except PlanError as error:
        raise Absent(str(error)) from error

    def decode(batches: Sequence[Sequence[bytes]]) -> Iterator[Any]:
        for pixels, errors in pool.map(decoder.decode, batches):
            if errors:
                raise next(iter(errors.values()))
            yield pixels

    # As in the loader, next batches are prepared while some are decoded.
    threads = 2 * (setting.options.pipelines or 2)
    with closing(decoder), ThreadPoolExecutor(threads) as pool:
        yield decode


@contextmanager
def dali_limit(
    device: torch.device, setting: Setting, *, resized: bool, defaults: bool = False
) -> Iterator[Decode]:
    """Have DALI's own operators, with nothing of datapipe and nothing copied out.

    `defaults` decodes with DALI's default options, which scale chroma up by a cheaper rule than the
    CPU.
    """
    nvidia: Any = import_module("nvidia.dali")
    fn, types = import_module("nvidia.dali.fn"), import_module("nvidia.dali.types")
    mixed = device.type == "cuda"
    feed: Iterator[list[Any]] = repeat([])
    pipeline: Any = nvidia.Pipeline(
        batch_size=setting.batch,
        num_threads=setting.threads,
        device_id=torch.cuda.current_device() if mixed else None,
        prefetch_queue_depth=_AHEAD,
        exec_dynamic=True,
    )
    how = {"device": "mixed" if mixed else "cpu"}
    if mixed and not defaults:
        how = decoder_options(device, setting.options)
    with pipeline:
        images = fn.external_source(
            source=lambda: next(feed), dtype=types.UINT8, ndim=1, no_copy=True
        )
        pixels = fn.decoders.image(images, **how)
        if resized:
            pixels = fn.resize(pixels, size=(SIDE, SIDE), antialias=True)
            mean, std = ([255 * value for value in values] for values in MEAN_STD)
            pixels = fn.crop_mirror_normalize(
                pixels, dtype=types.FLOAT, output_layout="CHW", mean=mean, std=std
            )
        pipeline.set_outputs(pixels)
    pipeline.build()

    def decode(batches: Sequence[Sequence[bytes]]) -> Iterator[Any]:
        nonlocal feed
        arrays = [[np.frombuffer(data, np.uint8) for data in jpegs] for jpegs in batches]
        # Several times, as the first ones were decoded ahead, before they were asked for.
        feed = cycle(arrays)
        for _ in range(_AGAIN * len(arrays)):
            yield pipeline.run()

    yield decode
    pipeline = None  # `decode` may live on, the memory must not
