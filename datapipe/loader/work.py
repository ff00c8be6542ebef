"""Work on each sample, as asked for and as a dataset needs it: its images, text and cache.

`ImagePath` is the way of its images: the decoder, and the device that completes batches.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import torch

from datapipe.cache.spec import CacheSpec
from datapipe.decode.array_spec import image_identity, spec_of, unnormalized
from datapipe.decode.dali.options import DaliOptions
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import ImageTransform, form_of, make_transform
from datapipe.errors import PlanError
from datapipe.extras import install_command
from datapipe.index.dataset import Dataset
from datapipe.index.mixture import DatasetPart
from datapipe.loader.batch.image_batch import GEOMETRY
from datapipe.loader.batch.user_transform import UserTransform
from datapipe.loader.device.prefetcher import DevicePrefetcher, resolve_device
from datapipe.loader.distributed import default_workers
from datapipe.loader.schedule.options import LoaderOptions
from datapipe.loader.schedule.state import compare
from datapipe.loader.specs import BatchSpec, DeviceSpec, PackSpec, Workers
from datapipe.plan.options import PlanOptions
from datapipe.text.spec import TextSpec

if TYPE_CHECKING:
    from datapipe.decode.dali.decoder import DaliDecoder

logger = logging.getLogger(__name__)
_log_once = cache(logger.info)

# Images that DALI takes at once; larger batches are cut. A GPU has more to do at a time.
_TOGETHER, _TOGETHER_ON_GPU = 64, 256

# Threads that decode for a GPU. More hold the interpreter's lock so much that they are slower, and
# that the training loop waits for it: docs/benchmarks.md has figures.
_MOST_THREADS = 8

DecoderName = Literal["auto", "cpu", "dali"]


@dataclass(frozen=True, kw_only=True)
class SampleWork:
    """Arguments of `make_loader` about the work on each sample."""

    image: ImageSpec | None
    text: TextSpec | None
    transform: UserTransform | None
    where: str | None
    decoder: DecoderName | DaliOptions
    device: DeviceSpec
    cache: CacheSpec | None
    static_shapes: PackSpec | None  # of packs that have constant shapes
    batch: BatchSpec  # shapes of padded batches
    for_model: bool = False  # options came from a model of Hugging Face

    @property
    def asks_for_dali(self) -> bool:
        """True if DALI is asked for, and not left to "auto"."""
        return isinstance(self.decoder, DaliOptions) or self.decoder == "dali"

    @property
    def keeps_on_device(self) -> bool:
        """True if images stay on the device that batches go to."""
        return self.cache is not None and self.cache.device is not None

    def check(self, meta: Sequence[str], *, train_tokens: bool) -> None:
        """Raise `PlanError` for options about images or tokens if there are none."""
        self.check_rows(self.image)
        if GEOMETRY in meta and self.image is None:
            raise PlanError(f"{GEOMETRY} in meta is about images; give image=ImageSpec(...)")
        counting = {"train_tokens": train_tokens}
        counting["num_items_in_batch in meta"] = "num_items_in_batch" in meta
        for name, given in counting.items():
            if given and self.text is None:
                raise PlanError(f"{name} counts tokens; give text=TextSpec(tokenizer=..., ...)")

    def check_rows(self, image: ImageSpec | None) -> None:
        """Raise `PlanError` for constant rows if images are left out, or differ in size."""
        batch, pack = self.batch, self.static_shapes
        if pack is not None and image is not None:
            said, of_images, remedy = "static_shapes", pack.max_patches is None, "max_patches="
        elif batch.sample_rows is not None:
            of_images, remedy = batch.sample_images is not None, "sample_patches="
            said = f"{'sample_images' if of_images else 'sample_patches'}={batch.sample_rows}"
        else:
            return
        if image is None:
            raise PlanError(f"{said} is about images; give image=ImageSpec(...), or leave it out")
        if form_of(image).padded:
            raise PlanError(
                f"{said}: with resize={image.resize!r} batches have images of their own size, so "
                "no number of them makes one shape; give another resize="
            )
        if of_images and image.resize in ("native", "tiles"):
            raise PlanError(
                f"{said}: with resize={image.resize!r} images have several rows of pixel_values; "
                f"give {remedy} instead of a number of images"
            )

    def described(self, plan: PlanOptions, options: LoaderOptions) -> dict[str, Any]:
        """Return all that the time of a batch depends on, by name; not the order of samples."""
        to = self.device.device
        return {
            **vars(self),
            "static_shapes": self.static_shapes is not None,  # its limits are in the plan
            "plan": {**plan.to_dict(), "seed": None, "group": None},
            "units_per_rank": options.units_per_rank,
            "meta": sorted(options.meta),
            "decoder": "cpu" if self.decoder == "auto" and to is None else self.decoder,
            # The kind of device, without its number.
            "device": {**vars(self.device), "device": to and str(to).partition(":")[0]},
            "verify": options.verify,
            "workers": options.workers.kind,
        }


def work_on(
    dataset: Dataset, work: SampleWork, own: Sequence[ImageSpec | None], *, image_given: bool
) -> SampleWork:
    """Return the work that there is on a dataset: images of arrays are only normalised.

    `own` is the `ImageSpec` of each part, None where it has that of `work`, which is that of the
    arrays unless `image_given`. Raises `PlanError` if the work cannot be done on arrays, or they
    hold other images.
    """
    if any(own) and work.decoder == "auto":
        work = replace(work, decoder="cpu")  # DALI makes images of one kind
    given = zip(dataset.parts, own, strict=True)
    held = [(part, part.arrays.image, its) for part, its in given if part.arrays is not None]
    if not held:
        return work
    forms = {part.name: form for part, form, _ in held if form}
    image = work.image
    if not image_given and forms:
        image = spec_of(next(iter(forms.values())))
    elif not image_given and len(held) == len(dataset.parts):
        image = None
    if work.cache is not None and work.cache.keeps_on_host:
        raise PlanError(
            f"{held[0][0].prefix}cache: arrays are decoded, and the page cache keeps the parts "
            "that were read; leave it out, or give CacheSpec(device=...)"
        )
    if image is not None:
        first = next(iter(forms), "")
        for name, form in forms.items():
            if different := compare(forms[first], form, f"of {first}", f"of {name}"):
                raise PlanError(
                    f"the arrays of {first} and {name} hold images of different forms "
                    f"({'; '.join(different)}); convert the shards of one again, or mix its shards"
                )
        for part, form, its in held:
            try:
                _check_arrays(part, form, work, its or image)
            except PlanError as error:
                raise PlanError(f"{part.prefix}{error}") from error
    return replace(work, image=image, decoder="cpu")


def _check_arrays(
    part: DatasetPart, form: Mapping[str, Any], work: SampleWork, image: ImageSpec
) -> None:
    if part.counts.images and not form:
        raise PlanError(
            f"the arrays hold no images, and their samples have {part.counts.images:,}; "
            "give image=None, or convert the shards again, with images"
        )
    if form and work.transform is not None:
        raise PlanError(
            "transform= takes images before they are fitted, and arrays hold them after; "
            "read the shards that they were made from"
        )
    if form and image.flip and part.arrays is not None and part.arrays.frames:
        raise PlanError(
            f"flip={image.flip} mirrors all frames of a video alike, and arrays do not hold which "
            "of their images these are; leave it out, or read the shards that they were made from"
        )
    if work.asks_for_dali:
        raise PlanError("decoder='dali': arrays are decoded already; leave it out")
    if form and (different := compare(form, image_identity(image), "there", "asked for")):
        stored = spec_of(form)
        options = ", ".join(
            f"{field.name}={getattr(stored, field.name)!r}"
            for field in fields(ImageSpec)
            if field.name in (*form, "size") and getattr(stored, field.name) != field.default
        )
        raise PlanError(
            f"the arrays hold other images ({'; '.join(different)}); give ImageSpec({options}), or "
            "convert the shards again"
        )


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
            self.work.check_rows(own)
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
    (_, gpu), image, cpus = _devices_of(work), work.image, default_workers()
    if gpu is None or kind != "threads":
        return cpus
    if image is not None and _tries_dali(work, gpu) and _unfit_for_dali(work, image, kind) is None:
        return cpus
    return min(cpus, _MOST_THREADS)


def choose_path(work: SampleWork, options: LoaderOptions) -> ImagePath:
    """Choose the images' decoder and the device that normalises them, or raise `PlanError`."""
    spec, (device, gpu) = work.image, _devices_of(work)
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


def _devices_of(work: SampleWork) -> tuple[torch.device | None, torch.device | None]:
    """Return the device that batches go to, and the same if it is a GPU."""
    device = None if work.device.device is None else resolve_device(work.device.device)
    return device, device if device is not None and device.type == "cuda" else None


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
