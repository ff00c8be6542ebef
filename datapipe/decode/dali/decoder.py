"""Batches of encoded images to pixels by NVIDIA DALI, with the meaning of `decode_rgb`.

DALI gets the JPEGs that it reads as the CPU kernels do (`jpeg.py`), and nothing in place of the
others: a GPU decodes a batch of one kind faster. The CPU kernels decode those meanwhile, and a
whole batch if DALI refuses it: DALI does not say which image was at fault. On a GPU all work is
queued in a stream of the decoder's.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from datapipe.decode.dali.graph import check_supported, placement, window
from datapipe.decode.dali.jpeg import plain_jpeg
from datapipe.decode.dali.options import DaliOptions
from datapipe.decode.dali.pipeline import DaliEntry, DaliPipeline, RefusedBatch
from datapipe.decode.image import check_image, check_indexed, check_size
from datapipe.decode.normalize import Values, array_of
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import Draw, Placement, make_transform
from datapipe.errors import DecodeError, PlanError
from datapipe.index.images.header import ImageInfo, probe
from datapipe.torch_threads import single_threads

_log = logging.getLogger(__name__)

MOST_PIXELS = 1 << 27  # of images that DALI decodes at once: 400 MB


_Image = tuple[bytes, Draw | None]
"""An encoded image, and the draw for its crop and mirroring."""


_Part = tuple[list[int], Tensor]
"""Rows of images that are decoded together, and their pixels, [n, 3, height, width]."""

_Jobs = dict[int, Future[None]]
"""Work on rows that has begun."""


class DaliDecoder:
    """Decoder of batches of images with DALI. Thread-safe; each pipeline takes a batch at a time.

    All images get one size (resize="stretch", "pad" or "crop"). A GPU's JPEG decoder is used if it
    has one. `pipelines` is the number of batches that DALI works on at once. With `check`,
    libjpeg-turbo reads the compressed data of every JPEG first, in a third to a half of the time of
    decoding it: DALI shows most damage as pixels. Images that datapipe packed were read then; one
    that was cut off is noticed without this.
    Raises `PlanError` if DALI is not installed or has no such device, or the graph does not do it.
    """

    def __init__(
        self,
        spec: ImageSpec,
        *,
        device: torch.device | None = None,  # with its number
        batch_size: int,  # more are cut up, as are over 128 million pixels
        threads: int,  # of DALI, and as many more for the CPU kernels
        options: DaliOptions | None = None,
        check: bool = False,
    ) -> None:
        check_supported(spec)
        self.spec = spec
        self.device = torch.device("cpu") if device is None else device
        if self._on_gpu and not torch.cuda.is_available():
            raise PlanError(f"DALI on {device} needs a GPU, and torch sees none; use decoder='cpu'")
        self.batch_size = batch_size
        self.check = check
        decoding = options or DaliOptions()
        self.pipelines = decoding.pipelines or (2 if self._on_gpu else 1)
        each = max(1, threads // self.pipelines)
        self._pipelines = [
            DaliPipeline(spec, self.device, batch_size, each, decoding)
            for _ in range(self.pipelines)
        ]
        # The one that was used last comes first: its memory has been taken already.
        self._idle: queue.LifoQueue[DaliPipeline] = queue.LifoQueue()
        for pipeline in self._pipelines:
            self._idle.put(pipeline)
        self._kernels = make_transform(spec)
        self._pool = single_threads(threads, "datapipe-dali")
        self._stream: torch.cuda.Stream | None = None
        if self._on_gpu:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._refused_damaged = self._refused_whole = 0  # batches with damaged images, and without

    def decode(
        self,
        images: Sequence[bytes | None],
        draws: Sequence[Draw | None] | None = None,  # for crop and mirroring; None for neither
        sizes: Sequence[tuple[int, int] | None] | None = None,  # in the index, upright
    ) -> tuple[Tensor, dict[int, DecodeError]]:
        """Decode, fit and normalise a batch of encoded images; None leaves a row empty.

        Return `[n, 3, height, width]` of the spec's dtype on the device, complete and the caller's
        own, with zeros for images that failed and empty rows; and the errors of those that failed,
        by index. On a GPU the memory belongs to a stream of the decoder: who uses it longer than it
        keeps the tensor calls `Tensor.record_stream`, as for every tensor of another stream.
        `DevicePrefetcher` does. Raises `DatapipeError` if it was closed, or made before a fork, or
        DALI fails with any image.
        """
        for pipeline in self._pipelines:
            pipeline.check_open()
        count = len(images)
        errors: dict[int, DecodeError] = {}
        entries: dict[int, DaliEntry] = {}
        others: dict[int, _Image] = {}
        given: dict[int, _Image] = {}
        rows_given = zip(images, draws or [None] * count, sizes or [None] * count, strict=True)
        for row, (data, draw, size) in enumerate(rows_given):
            if data is None:
                continue
            given[row] = data, draw
            try:
                info = self._header(data, size)
            except DecodeError as error:
                errors[row] = error
                continue
            plain = plain_jpeg(data, info)
            if plain is None:
                others[row] = given[row]
                continue
            mirrored = draw is not None and draw.mirrors(self.spec.flip)
            fitted = window(self.spec, *info.upright, draw)
            entries[row] = DaliEntry(plain, fitted, mirrored, info.width * info.height)
        if self.check:
            self._check(entries, errors)
        with self._section():
            parts: list[_Part] = []
            jobs = self._by_kernels(others, parts)
            for rows, pixels in self._by_dali(entries):
                if isinstance(pixels, RefusedBatch):
                    again = {row: given[row] for row in rows}
                    _wait(self._by_kernels(again, parts), errors)
                    self._tell(pixels, len(rows), damaged=len(errors.keys() & again.keys()))
                else:
                    parts.append((rows, pixels))
            _wait(jobs, errors)
            out = self._joined(count, parts)
            for row in range(count):
                if row in errors or row not in given:
                    out[row].zero_()
        return out, dict(sorted(errors.items()))

    def placement(self, width: int, height: int, draw: Draw | None = None) -> Placement:
        """Return the placement of an upright image of this size."""
        return placement(self.spec, width, height, draw)

    def close(self) -> None:
        """End all threads and free DALI's memory. Batches stay as they are."""
        for pipeline in self._pipelines:
            pipeline.close()
        self._pool.shutdown()

    @property
    def _on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @contextmanager
    def _section(self) -> Iterator[None]:
        """Queue work in the decoder's stream, and wait for it at the end.

        The caller's own stream may be the one that trains: to wait for that is to wait for a step.
        """
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            try:
                yield
            finally:
                # Until then nothing may be freed that a kernel reads. The thread sleeps: to wait
                # for a stream is to turn in a loop.
                done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                done.record(self._stream)
                done.synchronize()

    def _header(self, data: bytes, size: tuple[int, int] | None) -> ImageInfo:
        """Read the header of an image; raise `DecodeError` for a fault or another size."""
        info = probe(data)
        if size is not None:
            check_indexed(info.upright, size)
        check_size(info, self.spec.refuse_above)
        return info

    def _check(self, entries: dict[int, DaliEntry], errors: dict[int, DecodeError]) -> None:
        """Move damaged images from `entries` to `errors`."""

        def check_whole(image: bytes) -> None:
            check_image(image, probe(image))

        _wait({row: self._pool.submit(check_whole, e.data) for row, e in entries.items()}, errors)
        for row in errors.keys() & entries.keys():
            del entries[row]

    def _by_dali(
        self, entries: dict[int, DaliEntry]
    ) -> Iterator[tuple[list[int], Tensor | RefusedBatch]]:
        """Yield rows and pixels of each of DALI's batches, or why it refuses one."""
        batches = self._cut(entries)
        work = [partial(self._run, [entries[row] for row in batch]) for batch in batches]
        # The caller's thread takes part: it has nothing else to do.
        others = [self._pool.submit(each) for each in work[1:]]
        if work:
            yield batches[0], work[0]()
        for batch, other in zip(batches[1:], others, strict=True):
            yield batch, other.result()

    def _cut(self, entries: dict[int, DaliEntry]) -> list[list[int]]:
        """Return the rows of each of DALI's batches."""
        batches: list[list[int]] = []
        pixels = 0
        for row, entry in entries.items():
            pixels += entry.area
            if not batches or len(batches[-1]) == self.batch_size or pixels > MOST_PIXELS:
                batches.append([])
                pixels = entry.area
            batches[-1].append(row)
        return batches

    def _run(self, entries: Sequence[DaliEntry]) -> Tensor | RefusedBatch:
        pipeline = self._idle.get()
        try:
            return pipeline.run(entries)
        finally:
            self._idle.put(pipeline)

    def _tell(self, refused: RefusedBatch, images: int, *, damaged: int) -> None:
        """Say that the kernels decoded a batch that DALI refused."""
        if damaged:
            self._refused_damaged += 1
            _log.log(
                logging.WARNING if self._refused_damaged == 1 else logging.DEBUG,
                "DALI refused a batch (%s): %d of its %d images are damaged, and the CPU kernels "
                "decoded the others",
                *(refused, damaged, images),
            )
            return
        self._refused_whole += 1
        if self._refused_whole.bit_count() == 1:  # the 1st, 2nd, 4th, 8th ...
            _log.warning(
                "DALI refused a batch without a damaged image (%s), %d so far: the CPU kernels "
                "decoded it; see whether the device has memory left, or give decoder='cpu'",
                *(refused, self._refused_whole),
            )

    def _joined(self, count: int, parts: Sequence[_Part]) -> Tensor:
        """Return the rows of all parts in one tensor of `count` rows."""
        dtype = self.spec.out_dtype
        if len(parts) == 1 and len(parts[0][0]) == count and not self._on_gpu:
            return parts[0][1].to(dtype)  # DALI's memory on the CPU belongs to the tensor alone
        shape = (count, 3, self.spec.height, self.spec.width)
        out = torch.empty(shape, dtype=dtype, device=self.device)
        for rows, pixels in parts:
            if rows[-1] - rows[0] == len(rows) - 1:
                out[rows[0] : rows[-1] + 1].copy_(pixels, non_blocking=True)
            else:
                there = torch.tensor(rows, device=self.device)
                out.index_copy_(0, there, pixels.to(self.device, dtype, non_blocking=True))
        return out

    def _by_kernels(self, images: dict[int, _Image], parts: list[_Part]) -> _Jobs:
        """Begin to decode images with the CPU kernels, as another of the `parts`."""
        if not images:
            return {}
        pixels = torch.empty(
            (len(images), 3, self.spec.height, self.spec.width),
            dtype=self.spec.out_dtype,
            device="cpu",
            pin_memory=self._on_gpu,
        )
        parts.append((list(images), pixels))
        rows = array_of(pixels)
        return {
            row: self._pool.submit(self._make, *image, rows[at : at + 1])
            for at, (row, image) in enumerate(images.items())
        }

    def _make(self, data: bytes, draw: Draw | None, row: Values) -> None:
        self._kernels.place(self._kernels.decode(data), row, draw)


def _wait(jobs: _Jobs, errors: dict[int, DecodeError]) -> None:
    """Wait for work, and note what fails."""
    for row, job in jobs.items():
        try:
            job.result()
        except DecodeError as error:
            errors[row] = error
