"""Ways from a batch of JPEGs to a normalised tensor on a device, and the limits of DALI."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import cycle, repeat
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import Absent
from datapipe import DaliOptions, ImageSpec
from datapipe.decode.batched import normalize_batch, resize_batch
from datapipe.decode.dali.graph import decoder_options
from datapipe.decode.transform import make_transform
from datapipe.errors import PlanError
from datapipe.loader.device.copy_stream import resolve_device
from datapipe.loader.device.prefetcher import DevicePrefetcher

SIDE = 336
MEAN_STD = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SPEC = ImageSpec(size=SIDE, normalize=MEAN_STD)

_AHEAD, _AGAIN = 3, 4  # batches that the limit decodes ahead, and how often it decodes all


class Decoder(Protocol):
    """Decodes batches; what it queues on the device need not be done when it returns."""

    def decode(self, batches: Sequence[Sequence[bytes]]) -> Iterator[Any]:
        """Yield what becomes of each batch: float32 [n, 3, SIDE, SIDE] on the device."""
        ...

    def close(self) -> None:
        """Stop its threads, and free its memory."""
        ...


@dataclass(frozen=True, kw_only=True)
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
        make, note = partial(Dali, device, self), "datapipe's graph"
        return Entry(name=str(self), batch=self.batch, make=make, note=note, setting=self)

    def variations(self) -> list[Setting]:
        """Return this setting, and others that differ from it in one option."""
        loads = (0.0, 0.12, 0.3, 0.5, 0.8, 1.0)
        changes: list[dict[str, Any]] = [
            *({"hw_decoder_load": load} for load in loads),
            *({"pipelines": count} for count in (1, 3, 4)),
            {"hybrid_huffman_threshold": 100_000},
            {"preallocate_width": 1024, "preallocate_height": 1024},
        ]
        return [
            self,
            *(replace(self, options=replace(self.options, **change)) for change in changes),
        ]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A decoder of batches of some images; `setting` is that of datapipe's own with DALI."""

    name: str
    batch: int
    make: Callable[[], Decoder]
    note: str = ""
    setting: Setting | None = None


def kernels(device: torch.device, batch: int, threads: int) -> Entry:
    """Return datapipe's CPU kernels, the reference of all others."""
    return Entry(
        name="cpu",
        batch=batch,
        make=partial(CpuAndCopy, device, threads),
        note=f"datapipe's kernels on {threads} threads, uint8 copied, normalised on the device",
    )


def nvjpeg(device: torch.device, batch: int) -> Entry:
    return Entry(
        name=f"nvjpeg, batches of {batch}",
        batch=batch,
        make=partial(TorchvisionDecoder, device),
        note="torchvision.io.decode_jpeg on the device, then datapipe.decode.batched",
    )


def limits(device: torch.device, setting: Setting) -> list[Entry]:
    """Return DALI's own operators, with the options of a setting and with DALI's."""
    made = (
        ("decoding alone", {"resized": False}),
        ("decoding and resizing", {"resized": True}),
        ("decoding and resizing by its defaults", {"resized": True, "defaults": True}),
    )
    note = f"DALI's own operators, {_AHEAD} batches of {setting.batch} ahead, "
    note += f"{setting.threads} threads"
    return [
        Entry(
            name=f"limit: DALI, {name}",
            batch=setting.batch,
            make=partial(DaliLimit, device, setting, **how),
            note=note,
        )
        for name, how in made
    ]


class CpuAndCopy:
    """The loader's kernels on threads, page-locked memory, and its way to the device."""

    def __init__(self, device: torch.device, threads: int) -> None:
        self._pinned = device.type == "cuda"
        self._transform = make_transform(ImageSpec(size=SIDE))
        self._feeder = DevicePrefetcher(device, mean_std=MEAN_STD)
        self._pool = ThreadPoolExecutor(threads, initializer=partial(torch.set_num_threads, 1))

    def decode(self, batches: Sequence[Sequence[bytes]]) -> Iterator[Any]:
        for jpegs in batches:
            shape = (len(jpegs), 3, SIDE, SIDE)
            host = torch.empty(shape, dtype=torch.uint8, pin_memory=self._pinned)
            for _ in self._pool.map(self._place, jpegs, torch.split(host, 1)):
                pass
            sent = self._feeder.send({"pixel_values": host})
            yield self._feeder.receive(sent)["pixel_values"]

    def close(self) -> None:
        self._pool.shutdown()

    def _place(self, data: bytes, out: Tensor) -> None:
        self._transform.place(self._transform.decode(data), out.numpy())


class TorchvisionDecoder:
    """nvJPEG as torchvision has it; resized and normalised on the device."""

    def __init__(self, device: torch.device) -> None:
        io: Any = import_module("torchvision.io")
        self._decode = partial(io.decode_jpeg, mode=io.ImageReadMode.RGB, device=device)

    def decode(self, batches: Sequence[Sequence[bytes]]) -> Iterator[Any]:
        for jpegs in batches:
            encoded = [torch.from_numpy(np.frombuffer(data, np.uint8).copy()) for data in jpegs]
            try:
                images: list[Tensor] = self._decode(encoded)
            except RuntimeError as error:
                # A build without nvJPEG is found out only here.
                raise Absent(f"torchvision cannot: {str(error).splitlines()[0]}") from error
            fitted = torch.cat([resize_batch(image[None], SIDE, SIDE) for image in images])
            yield normalize_batch(fitted, MEAN_STD, torch.float32)

    def close(self) -> None:
        pass


class Dali:
    """datapipe's decoder with DALI, as loaders have it."""

    def __init__(self, device: torch.device, setting: Setting) -> None:
        from datapipe.decode.dali.decoder import DaliDecoder

        try:
            self._decoder = DaliDecoder(
                SPEC,
                device=resolve_device(device),
                batch_size=setting.batch,
                threads=setting.threads,
                options=setting.options,
            )
        except PlanError as error:
            raise Absent(str(error)) from error
        # As in the loader, next batches are prepared while some are decoded.
        self._pool = ThreadPoolExecutor(2 * (setting.options.pipelines or 2))

    def decode(self, batches: Sequence[Sequence[bytes]]) -> Iterator[Any]:
        for pixels, errors in self._pool.map(self._decoder.decode, batches):
            if errors:
                raise next(iter(errors.values()))
            yield pixels

    def close(self) -> None:
        self._pool.shutdown()
        self._decoder.close()


class DaliLimit:
    """DALI's own operators, with nothing of datapipe and nothing copied out.

    `defaults` decodes with DALI's default options, which scale chroma up by a cheaper rule than the
    CPU.
    """

    def __init__(
        self, device: torch.device, setting: Setting, *, resized: bool, defaults: bool = False
    ) -> None:
        dali: Any = import_module("nvidia.dali")
        fn, types = import_module("nvidia.dali.fn"), import_module("nvidia.dali.types")
        mixed = device.type == "cuda"
        self._feed: Iterator[list[Any]] = repeat([])
        self._pipeline = dali.Pipeline(
            batch_size=setting.batch,
            num_threads=setting.threads,
            device_id=torch.cuda.current_device() if mixed else None,
            prefetch_queue_depth=_AHEAD,
            exec_dynamic=True,
        )
        how = {"device": "mixed" if mixed else "cpu"}
        if mixed and not defaults:
            how = decoder_options(device, setting.options)
        with self._pipeline:
            images = fn.external_source(
                source=lambda: next(self._feed), dtype=types.UINT8, ndim=1, no_copy=True
            )
            pixels = fn.decoders.image(images, **how)
            if resized:
                pixels = fn.resize(pixels, size=(SIDE, SIDE), antialias=True)
                pixels = fn.crop_mirror_normalize(
                    pixels,
                    dtype=types.FLOAT,
                    output_layout="CHW",
                    mean=[255 * value for value in MEAN_STD[0]],
                    std=[255 * value for value in MEAN_STD[1]],
                )
            self._pipeline.set_outputs(pixels)
        self._pipeline.build()

    def decode(self, batches: Sequence[Sequence[bytes]]) -> Iterator[Any]:
        arrays = [[np.frombuffer(data, np.uint8) for data in jpegs] for jpegs in batches]
        # Several times, as the first ones were decoded ahead, before they were asked for.
        self._feed = cycle(arrays)
        for _ in range(_AGAIN * len(arrays)):
            yield self._pipeline.run()

    def close(self) -> None:
        self._pipeline = None
