"""Ways from a batch of JPEGs to a normalised tensor on a device, and the limits of DALI."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import cycle, repeat
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import Absent
from datapipe import DaliOptions, ImageSpec
from datapipe.decode.batched import fit_batch, normalize_batch
from datapipe.decode.transform import make_transform
from datapipe.errors import PlanError
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
class Entry:
    """A decoder with its settings.

    Attributes:
        name: with the settings.
        batch: images that it takes at a time.
        make: makes it.
        note: what a reader must know.
    """

    name: str
    batch: int
    make: Callable[[], Decoder]
    note: str = ""


def entries(device: torch.device, batches: Sequence[int], threads: Sequence[int]) -> list[Entry]:
    """Return all that are compared; `batches` and `threads` are the settings that are tried."""
    small, large, most = min(batches), max(batches), max(threads)
    graph = partial(Dali, device)
    return [
        Entry(
            name="cpu",
            batch=small,
            make=partial(CpuAndCopy, device, most),
            note=f"datapipe's kernels on {most} threads, uint8 copied, normalised on the device",
        ),
        *(
            Entry(
                name=f"nvjpeg, batches of {batch}",
                batch=batch,
                make=partial(TorchvisionDecoder, device),
                note="torchvision.io.decode_jpeg on the device, then datapipe.decode.batched",
            )
            for batch in batches
        ),
        *(
            Entry(
                name=f"dali, batches of {batch}, {count} threads",
                batch=batch,
                make=partial(graph, batch, count),
                note="datapipe's graph",
            )
            for batch in batches
            for count in threads
        ),
        *(
            Entry(
                name=f"dali, batches of {batch}, {most} threads, 2 pipelines",
                batch=batch,
                make=partial(graph, batch, most, pipelines=2),
                note="two of datapipe's graphs, a Python thread each",
            )
            for batch in batches
        ),
        *(
            Entry(
                name=f"dali, batches of {large}, {most} threads, hw_decoder_load {load:g}",
                batch=large,
                make=partial(graph, large, most, load=load),
                note="share of the JPEGs that the hardware decoder takes",
            )
            for load in (0.0, 0.9, 1.0)
        ),
        *(
            Entry(
                name=f"limit: DALI, {name}, batches of {batch}",
                batch=batch,
                make=partial(DaliLimit, device, batch, most, resized=resized),
                note=f"DALI's own operators, {_AHEAD} batches ahead, {most} threads",
            )
            for name, resized in (("decoding alone", False), ("decoding and resizing", True))
            for batch in batches
        ),
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
            host = torch.empty(
                (len(jpegs), 3, SIDE, SIDE), dtype=torch.uint8, pin_memory=self._pinned
            )
            for _ in self._pool.map(self._place, jpegs, torch.split(host, 1)):
                pass
            sent = self._feeder.send({"pixel_values": host})
            yield self._feeder.receive(sent)["pixel_values"]

    def close(self) -> None:
        self._pool.shutdown()

    def _place(self, data: bytes, out: Tensor) -> None:
        self._transform.place(self._transform.decode(data), out)


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
            yield normalize_batch(fit_batch(images, SIDE, SIDE), MEAN_STD, torch.float32)

    def close(self) -> None:
        pass


class Dali:
    """The graph that `decoder="dali"` runs, once or several times."""

    def __init__(
        self,
        device: torch.device,
        batch: int,
        threads: int,
        *,
        load: float | None = None,
        pipelines: int = 1,
    ) -> None:
        from datapipe.decode.dali.decoder import DaliDecoder

        options = DaliOptions() if load is None else DaliOptions(hw_decoder_load=load)
        try:
            self._decoders = [
                DaliDecoder(
                    SPEC,
                    device="mixed" if device.type == "cuda" else "cpu",
                    batch_size=batch,
                    threads=max(1, threads // pipelines),
                    options=options,
                )
                for _ in range(pipelines)
            ]
        except PlanError as error:
            raise Absent(str(error)) from error
        # As in the loader, the next batch is prepared while this one is decoded.
        self._pool = ThreadPoolExecutor(2 * pipelines)

    def decode(self, batches: Sequence[Sequence[bytes]]) -> Iterator[Any]:
        jobs = zip(cycle(self._decoders), batches, strict=False)
        for pixels, errors in self._pool.map(lambda job: job[0].decode(job[1]), jobs):
            if errors:
                raise next(iter(errors.values()))
            yield pixels

    def close(self) -> None:
        self._pool.shutdown()
        for decoder in self._decoders:
            decoder.close()


class DaliLimit:
    """DALI's own operators, with nothing of datapipe and nothing copied out.

    Args:
        device, batch, threads: of its pipeline.
        resized: whether images are resized and normalised too, from their whole to the whole.
    """

    def __init__(self, device: torch.device, batch: int, threads: int, *, resized: bool) -> None:
        dali: Any = import_module("nvidia.dali")
        fn, types = import_module("nvidia.dali.fn"), import_module("nvidia.dali.types")
        mixed = device.type == "cuda"
        self._feed: Iterator[list[Any]] = repeat([])
        self._pipeline = dali.Pipeline(
            batch_size=batch,
            num_threads=threads,
            device_id=torch.cuda.current_device() if mixed else None,
            prefetch_queue_depth=_AHEAD,
            exec_dynamic=True,
        )
        with self._pipeline:
            images = fn.external_source(
                source=lambda: next(self._feed), dtype=types.UINT8, ndim=1, no_copy=True
            )
            pixels = fn.decoders.image(images, device="mixed" if mixed else "cpu")
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
        # Several times, as the first ones were decoded ahead, before anybody asked.
        self._feed = cycle(arrays)
        for _ in range(_AGAIN * len(arrays)):
            yield self._pipeline.run()

    def close(self) -> None:
        self._pipeline = None
