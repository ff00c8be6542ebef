"""Batches of encoded images to pixels by NVIDIA DALI, with the meaning of `decode_rgb`.

DALI gets the JPEGs that it reads as the CPU kernels do (`jpeg.py`). These kernels decode the others
meanwhile, and the whole batch if DALI refuses it: DALI does not say which image was at fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

import torch
from torch import Tensor

from datapipe.decode.check import check_image
from datapipe.decode.dali.graph import GraphOptions, check_supported, placement, window
from datapipe.decode.dali.jpeg import plain_jpeg
from datapipe.decode.dali.options import DaliOptions
from datapipe.decode.dali.pipeline import NOTHING, DaliPipeline, Entry
from datapipe.decode.image import Decoded, check_indexed, check_size
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import Draw, make_transform
from datapipe.errors import DecodeError, PlanError
from datapipe.geometry.placement import Placement
from datapipe.index.images.header import probe, probe_indexed
from datapipe.index.rows import ImageSize


class DaliDecoder:
    """Decoder of batches of images with DALI. Thread-safe; DALI itself takes one batch at a time.

    Args:
        spec: of images of one size: resize="stretch", "pad" or "crop".
        device: "cpu", or "mixed" to decode on a GPU, with its JPEG decoder if it has one.
        device_id: of the GPU; None is torch's current one.
        batch_size: most images of a batch.
        threads: of DALI, and as many more for the CPU kernels.
        options: of decoding on a GPU.
        check: whether libjpeg-turbo reads the compressed data of every JPEG first, in a third to a
            half of the time of decoding it. DALI shows most damage as pixels. Images that datapipe
            packed were read then; a JPEG that was cut off is noticed without this.

    Raises:
        PlanError: DALI is not installed or has no such device, or the graph does not do `spec`.
    """

    def __init__(
        self,
        spec: ImageSpec,
        *,
        device: Literal["cpu", "mixed"] = "cpu",
        device_id: int | None = None,
        batch_size: int,
        threads: int,
        options: DaliOptions | None = None,
        check: bool = False,
    ) -> None:
        check_supported(spec)
        self.spec = spec
        self.device = _torch_device(device, device_id)
        self.batch_size = _at_least("batch_size", batch_size, 1)
        self.check = check
        graph_options = GraphOptions(
            device=device,
            device_id=self.device.index,
            batch_size=batch_size,
            threads=_at_least("threads", threads, 1),
            decoding=options or DaliOptions(),
        )
        self._pipeline = DaliPipeline(spec, graph_options)
        self._kernels = make_transform(spec)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="datapipe-dali")

    def decode(
        self,
        images: Sequence[bytes],
        draws: Sequence[Draw | None] | None = None,
        sizes: Sequence[ImageSize] | None = None,
    ) -> tuple[Tensor, dict[int, DecodeError]]:
        """Decode, fit and normalise a batch.

        Args:
            images: encoded, 0 to `batch_size` of them.
            draws: random numbers of each image, for crop and mirroring; None for neither.
            sizes: (width, height) of each upright image in the index; None if unknown. An image of
                another size fails.

        Returns:
            `[n, 3, height, width]` of the spec's dtype on the device, complete and the caller's
            own, with zeros for images that failed; and the errors of those, by index.

        Raises:
            PlanError: there are more than `batch_size` images.
            DatapipeError: it was closed, or made before a fork, or DALI fails with any image.
        """
        self._pipeline.check_open()
        if len(images) > self.batch_size:
            raise PlanError(
                f"{len(images)} images in a batch, and this DaliDecoder was made for "
                f"{self.batch_size}; make it with batch_size={len(images)}"
            )
        draws = [None] * len(images) if draws is None else draws
        errors: dict[int, DecodeError] = {}
        batch: list[Entry] = [NOTHING] * len(images)
        by_dali: list[int] = []
        by_kernels: dict[int, Future[Decoded]] = {}
        for index, (image, draw) in enumerate(zip(images, draws, strict=True)):
            size = None if sizes is None else sizes[index]
            try:
                entry = self._entry(image, draw, size)
            except DecodeError as error:
                errors[index] = error
                continue
            if entry is None:
                by_kernels[index] = self._pool.submit(self._kernels.decode, image, size)
            else:
                batch[index] = entry
                by_dali.append(index)
        if self.check:
            by_dali = self._check(batch, by_dali, errors)
        shared = self._pipeline.run(batch) if by_dali else None
        if shared is None:
            shape = (len(images), 3, self.spec.height, self.spec.width)
            out = torch.zeros(shape, dtype=self.spec.out_dtype, device=self.device)
            for index in by_dali:
                size = None if sizes is None else sizes[index]
                by_kernels[index] = self._pool.submit(self._kernels.decode, images[index], size)
        else:
            # torch's streams do not know DALI's memory on a GPU: it could be overwritten while a
            # kernel of theirs still reads it. On the CPU it belongs to the tensor alone.
            out = shared.to(self.spec.out_dtype, copy=self._on_gpu)
        for index, future in by_kernels.items():
            try:
                self._place(future.result(), out[index : index + 1], draws[index])
            except DecodeError as error:
                errors[index] = error
        for index in errors:
            out[index].zero_()
        if self._on_gpu:
            torch.cuda.current_stream(self.device).synchronize()
        return out, dict(sorted(errors.items()))

    def placement(self, width: int, height: int, draw: Draw | None = None) -> Placement:
        """Return the placement of an upright image of this size."""
        return placement(self.spec, width, height, draw)

    def close(self) -> None:
        """End all threads and free DALI's memory. Batches stay as they are."""
        self._pipeline.close()
        self._pool.shutdown()

    @property
    def _on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def _entry(self, image: bytes, draw: Draw | None, size: ImageSize | None) -> Entry | None:
        """Return what DALI gets of an image, or None if the CPU kernels have to decode it.

        Raises:
            DecodeError: its header says that it cannot be decoded, or that it is not of this size.
        """
        info = probe(image) if size is None else probe_indexed(image, size)
        if size is not None:
            check_indexed(info.upright, (size.width, size.height))
        check_size(info, self.spec.refuse_above)
        plain = plain_jpeg(image, info)
        if plain is None:
            return None
        mirror = draw is not None and draw.mirrors(self.spec.flip)
        return plain, window(self.spec, *info.upright, draw), mirror

    def _check(
        self, batch: list[Entry], indices: list[int], errors: dict[int, DecodeError]
    ) -> list[int]:
        """Take damaged images out of a batch, into `errors`. Return the indices of the others."""
        checks = {index: self._pool.submit(_check_whole, batch[index][0]) for index in indices}
        for index, check in checks.items():
            try:
                check.result()
            except DecodeError as error:
                errors[index] = error
                batch[index] = NOTHING
        return [index for index in indices if index not in errors]

    def _place(self, image: Decoded, out: Tensor, draw: Draw | None) -> None:
        if not self._on_gpu:
            self._kernels.place(image, out, draw)
            return
        row = torch.empty(out.shape, dtype=out.dtype, device="cpu")
        self._kernels.place(image, row, draw)
        out.copy_(row)


def _check_whole(image: bytes) -> None:
    check_image(image, probe(image))


def _torch_device(device: str, device_id: int | None) -> torch.device:
    if device == "cpu" and device_id is None:
        return torch.device("cpu")
    if device != "mixed":
        raise PlanError(
            f"device {device!r} with device_id {device_id!r}: give 'cpu' without a device_id, or "
            "'mixed' for a GPU"
        )
    if not torch.cuda.is_available():
        raise PlanError("device='mixed' needs a GPU, and torch sees none; use device='cpu'")
    return torch.device("cuda", torch.cuda.current_device() if device_id is None else device_id)


def _at_least(name: str, value: int, least: int) -> int:
    if type(value) is not int or value < least:
        raise PlanError(f"{name} {value!r}: give a whole number from {least}")
    return value
