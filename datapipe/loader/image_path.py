"""Path of the images of a loader: the decoder, and the device that completes batches."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import torch

from datapipe.decode.array_spec import unnormalized
from datapipe.decode.dali.options import DaliOptions
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import ImageTransform, form_of, make_transform
from datapipe.errors import PlanError
from datapipe.extras import install_command
from datapipe.loader.device.copy_stream import resolve_device
from datapipe.loader.device.prefetcher import DevicePrefetcher
from datapipe.loader.distributed import default_workers
from datapipe.loader.schedule.options import LoaderOptions
from datapipe.loader.specs import Workers
from datapipe.loader.work import SampleWork, check_rows

if TYPE_CHECKING:
    from datapipe.decode.dali.decoder import DaliDecoder

logger = logging.getLogger(__name__)

# Images that DALI takes at once; larger batches are cut. A GPU has more to do at a time.
_TOGETHER, _TOGETHER_ON_GPU = 64, 256

# Threads that decode for a GPU. More hold the interpreter's lock so much that they are slower, and
# that the training loop waits for it: docs/benchmarks.md has figures.
_MOST_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class ImagePath:
    """Decoder and device of the images."""

    work: SampleWork
    made: ImageSpec | None  # by the workers or DALI; None if images are left out
    decoder: DaliDecoder | None  # None for the CPU kernels
    prefetcher: DevicePrefetcher | None  # None if batches stay

    @property
    def device(self) -> torch.device:
        """Device of the batches."""
        return torch.device("cpu") if self.prefetcher is None else self.prefetcher.device

    def transform(self, own: ImageSpec | None = None) -> ImageTransform | None:
        """Return the transform of images in the workers; None if images are left out.

        `own` are images of a dataset of a mixture; None for those of the loader. Raises `PlanError`
        if these are others, and DALI, a cache on the device or the device itself work on all alike.
        """
        here, made = self.work.image, self.made
        if own is not None and here is not None and own != here:
            check_rows(self.work.batch, own)
            self._check_beside(here, own)
            made = own if self.prefetcher is None else unnormalized(own)
        if made is not None and self.work.keeps_on_device:
            made = replace(made, flip=0.0)  # on the device, so that kept images are always the same
        return None if made is None else make_transform(made)

    def _check_beside(self, here: ImageSpec, own: ImageSpec) -> None:
        """Refuse images of a dataset that differ from the others where all must be alike."""
        alike = "and this dataset's ImageSpec differs from image=; give both the same, or"
        if self.decoder is not None:
            raise PlanError(f"DALI makes all images of a batch alike, {alike} decoder='cpu'")
        if self.work.keeps_on_device:
            raise PlanError(
                f"cache device=... keeps images of one ImageSpec, {alike} CacheSpec(memory=...)"
            )
        if self.prefetcher is None:
            return
        if form_of(here).padded != form_of(own).padded:
            raise PlanError(
                f"the device pads images of resize={here.resize!r} and of "
                f"resize={own.resize!r} differently, {alike} leave device= out"
            )
        if (here.mean_std, here.out_dtype) != (own.mean_std, own.out_dtype):
            raise PlanError(
                f"images are normalised on the device, with mean and std {here.mean_std} to "
                f"{here.out_dtype}, and this dataset asks for {own.mean_std} to "
                f"{own.out_dtype}; give both the same, or leave device= out"
            )


def default_count(work: SampleWork, kind: Workers) -> int:
    """Return the default number of workers: the CPUs of this rank, but at most 8 for a GPU.

    That limit is for threads that decode by the CPU kernels. `PlanError` if the device is unknown.
    """
    gpu, image, cpus = _gpu_of(_device_of(work)), work.image, default_workers()
    if gpu is None or kind != "threads":
        return cpus
    if image is not None and _tries_dali(work, gpu) and _unfit_for_dali(work, image, kind) is None:
        return cpus
    return min(cpus, _MOST_THREADS)


def choose_path(work: SampleWork, options: LoaderOptions) -> ImagePath:
    """Choose the images' decoder and the device that normalises them, or raise `PlanError`."""
    spec, device = work.image, _device_of(work)
    gpu = _gpu_of(device)
    decoder = _start_dali(work, options, gpu)
    # What the workers make is normalised on the device: a quarter of the bytes cross the bus.
    there = None if decoder is not None and gpu is not None else spec
    prefetcher = None
    if device is not None:
        prefetcher = DevicePrefetcher(
            device,
            mean_std=None if there is None else there.mean_std,
            dtype=None if there is None else there.out_dtype,
            channels_last=work.device.channels_last,
            padded=spec is not None and form_of(spec).padded,
        )
    made = unnormalized(there) if device is not None and there is not None else spec
    return ImagePath(work=work, made=made, decoder=decoder, prefetcher=prefetcher)


def _start_dali(
    work: SampleWork, options: LoaderOptions, gpu: torch.device | None
) -> DaliDecoder | None:
    """Start DALI if it is asked for, and with "auto" on a GPU if it can do the work."""
    asked, image = work.asks_for_dali, work.image
    if not _tries_dali(work, gpu):
        return None
    if image is None:
        raise PlanError("decoder='dali' decodes images, and image=None leaves them out")
    if reason := _unfit_for_dali(work, image, options.workers.kind):
        if asked:
            raise PlanError(f"decoder='dali': {reason}; give decoder='cpu'")
        _log_once(f"images are decoded by the CPU kernels: {reason}")
        return None
    from datapipe.decode.dali.decoder import DaliDecoder

    on_cpu = work.device.device is not None and gpu is None
    try:
        decoder = DaliDecoder(
            unnormalized(image) if on_cpu else image,
            device=gpu,
            batch_size=_TOGETHER if gpu is None else _TOGETHER_ON_GPU,
            threads=max(1, options.num_workers),
            check=not options.verify,  # DALI shows damage as pixels; a checksum finds it too
            options=work.decoder if isinstance(work.decoder, DaliOptions) else DaliOptions(),
        )
    except PlanError as error:
        if asked:
            raise
        logger.warning("images are decoded by the CPU kernels: %s", error)
        return None
    _log_once(f"images are decoded by DALI on the {'CPU' if gpu is None else 'GPU'}")
    return decoder


def _device_of(work: SampleWork) -> torch.device | None:
    return None if work.device.device is None else resolve_device(work.device.device)


def _gpu_of(device: torch.device | None) -> torch.device | None:
    return device if device is not None and device.type == "cuda" else None


def _tries_dali(work: SampleWork, gpu: torch.device | None) -> bool:
    # DALI decodes, fits and normalises at once, so there is nothing to keep on the device.
    possible = work.image is not None and gpu is not None and not work.keeps_on_device
    return work.asks_for_dali or (work.decoder != "cpu" and possible)


def _unfit_for_dali(work: SampleWork, image: ImageSpec, kind: Workers) -> str | None:
    """Return the reason why DALI cannot do this; None if it can."""
    from datapipe.decode.dali.graph import check_supported, installed

    if work.transform is not None:
        return "transform= works on decoded images, and DALI makes batches of encoded ones"
    if kind != "threads":
        return "DALI has threads of its own and does not work in processes"
    if image.scaled_decode:
        return "scaled_decode needs the CPU kernels"
    try:
        check_supported(image)
    except PlanError as error:
        return str(error)
    return None if installed() else f"DALI is not installed: {install_command('dali')}"


@cache
def _log_once(message: str) -> None:
    logger.info("%s", message)
