"""Work on each sample: its images, text and cache, and the decoder and device that make images."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import torch

from datapipe.cache.spec import CacheSpec
from datapipe.decode.array_spec import unnormalized
from datapipe.decode.dali.options import DaliOptions
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import ImageTransform, form_of, make_transform
from datapipe.errors import PlanError
from datapipe.loader.batch.image_batch import GEOMETRY
from datapipe.loader.batch.user_transform import UserTransform
from datapipe.loader.device.copy_stream import resolve_device
from datapipe.loader.device.prefetcher import DevicePrefetcher
from datapipe.loader.schedule.run_options import LoaderOptions
from datapipe.loader.specs import BatchSpec, DeviceSpec
from datapipe.plan.options import PlanOptions
from datapipe.text.spec import TextSpec

if TYPE_CHECKING:
    from datapipe.decode.dali.decoder import DaliDecoder

logger = logging.getLogger(__name__)

DecoderName = Literal["auto", "cpu", "dali"]

# Images that DALI takes at once; larger batches are cut. A GPU has more to do at a time.
_TOGETHER, _TOGETHER_ON_GPU = 64, 256


@dataclass(frozen=True, kw_only=True)
class ImagePath:
    """Decoder and device of the images.

    Attributes:
        made: images that the workers or DALI make; None if images are left out.
        decoder: DALI; None for the CPU kernels.
        prefetcher: copies batches to a device; None if they stay.
    """

    made: ImageSpec | None
    decoder: DaliDecoder | None
    prefetcher: DevicePrefetcher | None


@dataclass(frozen=True, kw_only=True)
class Work:
    """Arguments of `make_loader` about the work on each sample.

    Attributes:
        cache: None if no samples are kept.
        static_shapes: whether packs have constant shapes.
        batch: shapes of padded batches.
    """

    image: ImageSpec | None
    text: TextSpec | None
    transform: UserTransform | None
    where: str | None
    decoder: DecoderName | DaliOptions
    device: DeviceSpec
    cache: CacheSpec | None
    static_shapes: bool
    batch: BatchSpec

    def check_names(self, meta: Sequence[str], *, train_tokens: bool) -> None:
        """Refuse options about images or tokens if there are none.

        Raises:
            PlanError: there is such an option.
        """
        if GEOMETRY in meta and self.image is None:
            raise PlanError(f"{GEOMETRY} in meta is about images; give image=ImageSpec(...)")
        for given, name in (
            (train_tokens, "train_tokens"),
            ("num_items_in_batch" in meta, "num_items_in_batch in meta"),
        ):
            if given and self.text is None:
                raise PlanError(f"{name} counts tokens; give text=TextSpec(tokenizer=..., ...)")

    def check_shapes(self) -> None:
        """Refuse a constant number of rows of `pixel_values` where there is none.

        Raises:
            PlanError: images are left out, or differ in size.
        """
        batch, image = self.batch, self.image
        if batch.sample_rows is None:
            return
        name = "sample_patches" if batch.sample_images is None else "sample_images"
        said = f"{name}={batch.sample_rows}"
        if image is None:
            raise PlanError(f"{said} is about images; give image=ImageSpec(...), or leave it out")
        if form_of(image).padded:
            raise PlanError(
                f"{said}: with resize={image.resize!r} batches have images of their own size, so "
                "no number of them makes one shape; give another resize="
            )
        if name == "sample_images" and not image.one_size:
            raise PlanError(
                f"{said}: with resize={image.resize!r} images have several rows of pixel_values; "
                "give sample_patches= in its place"
            )

    def described(self, plan: PlanOptions, options: LoaderOptions) -> dict[str, Any]:
        """Return all that the time of a batch depends on, by name; not the order of samples."""
        to = self.device.device
        return {
            "plan": {**plan.to_dict(), "seed": None, "group": None},
            "units_per_rank": options.units_per_rank,
            "image": self.image,
            "text": self.text,
            "transform": self.transform,
            "where": self.where,
            "static_shapes": self.static_shapes,
            "batch": self.batch.given(),
            "meta": sorted(options.meta),
            "decoder": "cpu" if self.decoder == "auto" and to is None else self.decoder,
            "device": None if to is None else str(to).partition(":")[0],
            "channels_last": self.device.channels_last,
            "pin_memory": self.device.pin_memory,
            "verify": options.verify,
            "workers": options.workers,
            "cache": self.cache,
        }

    def choose_path(self, options: LoaderOptions) -> ImagePath:
        """Choose the decoder of the images and the device that normalises them.

        Raises:
            PlanError: DALI is asked for, and is not installed or cannot do this; or there is no
                such device.
        """
        spec, given = self.image, self.device.device
        device = resolve_device(given) if given is not None else None
        on_gpu = device is not None and device.type == "cuda"
        made = spec  # by the workers or DALI; the rest is done on the device
        if spec is not None and device is not None:
            made = unnormalized(spec)  # a quarter of the bytes cross the bus
        decoder, there = None, spec  # `there` is normalised on the device
        if self._takes_dali(options, on_gpu=on_gpu):
            assert spec is not None
            assert made is not None
            gpu = device if on_gpu else None
            decoder = self._start_dali(made if gpu is None else spec, options, gpu)
            if decoder is not None and on_gpu:
                made, there = spec, None
        prefetcher = None
        if device is not None:
            prefetcher = DevicePrefetcher(
                device,
                mean_std=there.mean_std if there is not None else None,
                dtype=there.out_dtype if there is not None else None,
                channels_last=self.device.channels_last,
                padded=spec is not None and form_of(spec).padded,
            )
        return ImagePath(made=made, decoder=decoder, prefetcher=prefetcher)

    def _start_dali(
        self, made: ImageSpec, options: LoaderOptions, gpu: torch.device | None
    ) -> DaliDecoder | None:
        """Start DALI; None where "auto" chose it and it cannot start, which is logged.

        Raises:
            PlanError: DALI is asked for and cannot start.
        """
        from datapipe.decode.dali.decoder import DaliDecoder

        try:
            decoder = DaliDecoder(
                made,
                device="cpu" if gpu is None else "mixed",
                device_id=None if gpu is None else gpu.index,
                batch_size=_TOGETHER if gpu is None else _TOGETHER_ON_GPU,
                threads=max(1, options.num_workers),
                # DALI shows damage as pixels. A checksum finds it too.
                check=not options.verify,
                options=self.decoder if isinstance(self.decoder, DaliOptions) else DaliOptions(),
            )
        except PlanError as error:
            if self.decoder != "auto":
                raise
            logger.warning("images are decoded by the CPU kernels: %s", error)
            return None
        _log_once(f"images are decoded by DALI on the {'CPU' if gpu is None else 'GPU'}")
        return decoder

    def _takes_dali(self, options: LoaderOptions, *, on_gpu: bool) -> bool:
        """Return whether DALI decodes: if asked for, and by "auto" on a GPU if it can.

        Raises:
            PlanError: DALI is asked for, and is not installed or cannot do this.
        """
        name = "dali" if isinstance(self.decoder, DaliOptions) else self.decoder
        if name not in ("auto", "cpu", "dali"):
            raise PlanError(f"decoder {name!r} is not one of 'auto', 'cpu', 'dali' and DaliOptions")
        # DALI decodes, fits and normalises at once, so there is nothing to keep on the device.
        if name == "cpu" or (name == "auto" and (not on_gpu or self.keeps_on_device)):
            return False
        if self.image is None:
            if name == "dali":
                raise PlanError("decoder='dali' decodes images, and image=None leaves them out")
            return False
        reason = self._unfit_for_dali(self.image, options)
        if reason is not None and name == "dali":
            raise PlanError(f"decoder='dali': {reason}; give decoder='cpu'")
        if reason is not None:
            _log_once(f"images are decoded by the CPU kernels: {reason}")
        return reason is None

    def _unfit_for_dali(self, image: ImageSpec, options: LoaderOptions) -> str | None:
        """Return the reason why DALI cannot do this; None if it can."""
        from datapipe.decode.dali.graph import check_supported, installed

        if self.transform is not None:
            return "transform= works on decoded images, and DALI makes batches of encoded ones"
        if options.workers == "processes":
            return "DALI has threads of its own and does not work in processes"
        if image.scaled_decode:
            return "scaled_decode is of the CPU kernels"
        try:
            check_supported(image)
        except PlanError as error:
            return str(error)
        return None if installed() else "DALI is not installed: pip install 'datapipe[dali]'"

    def fitting(self, path: ImagePath) -> ImageTransform | None:
        """Return the transform of images in the workers; None if images are left out."""
        made = path.made
        if made is not None and self.keeps_on_device:
            made = replace(made, flip=0.0)  # on the device, so that kept images are always the same
        return make_transform(made) if made is not None else None

    def fitting_own(self, own: ImageSpec | None, path: ImagePath) -> ImageTransform | None:
        """Return the transform of images of a dataset of a mixture.

        Args:
            own: images of the dataset; None for those of the others.
            path: of the other images.

        Raises:
            PlanError: DALI, a cache on the device or the device itself work on all images alike,
                and these are others; or as `check_shapes`.
        """
        if own is None or self.image is None or own == self.image:
            return self.fitting(path)
        replace(self, image=own).check_shapes()
        alike = "and this dataset has another ImageSpec than image=; give both the same, or"
        if path.decoder is not None:
            raise PlanError(f"DALI makes all images of a batch alike, {alike} decoder='cpu'")
        if self.keeps_on_device:
            raise PlanError(
                f"cache device=... keeps images of one ImageSpec, {alike} CacheSpec(memory=...)"
            )
        if path.prefetcher is not None:
            here, there = self.image, own
            if form_of(here).padded != form_of(there).padded:
                raise PlanError(
                    f"the device pads images of resize={here.resize!r} and of "
                    f"resize={there.resize!r} differently, {alike} leave device= out"
                )
            if (here.mean_std, here.out_dtype) != (there.mean_std, there.out_dtype):
                raise PlanError(
                    f"images are normalised on the device, with mean and std {here.mean_std} to "
                    f"{here.out_dtype}, and this dataset asks for {there.mean_std} to "
                    f"{there.out_dtype}; give both the same, or leave device= out"
                )
            own = unnormalized(own)
        return self.fitting(replace(path, made=own))

    @property
    def keeps_on_device(self) -> bool:
        """True if images stay on the device that batches go to."""
        return self.cache is not None and self.cache.device is not None


@cache
def _log_once(message: str) -> None:
    logger.info("%s", message)
