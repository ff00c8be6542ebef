"""Work on each sample: its images, text and cache, as they were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from datapipe.cache.spec import CacheSpec
from datapipe.decode.dali.options import DaliOptions
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import form_of
from datapipe.errors import PlanError
from datapipe.loader.batch.image_batch import GEOMETRY
from datapipe.loader.batch.user_transform import UserTransform
from datapipe.loader.schedule.run_options import LoaderOptions
from datapipe.loader.specs import BatchSpec, DeviceSpec
from datapipe.plan.options import PlanOptions
from datapipe.text.spec import TextSpec

DecoderName = Literal["auto", "cpu", "dali"]


@dataclass(frozen=True, kw_only=True)
class Work:
    """Arguments of `make_loader` about the work on each sample."""

    image: ImageSpec | None
    text: TextSpec | None
    transform: UserTransform | None
    where: str | None
    decoder: DecoderName | DaliOptions
    device: DeviceSpec
    cache: CacheSpec | None
    static_shapes: bool  # packs have constant shapes
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
        check_rows(self.batch, self.image)
        if GEOMETRY in meta and self.image is None:
            raise PlanError(f"{GEOMETRY} in meta is about images; give image=ImageSpec(...)")
        counting = {"train_tokens": train_tokens}
        counting["num_items_in_batch in meta"] = "num_items_in_batch" in meta
        for name, given in counting.items():
            if given and self.text is None:
                raise PlanError(f"{name} counts tokens; give text=TextSpec(tokenizer=..., ...)")

    def described(self, plan: PlanOptions, options: LoaderOptions) -> dict[str, Any]:
        """Return all that the time of a batch depends on, by name; not the order of samples."""
        to = self.device.device
        return {
            **vars(self),
            "plan": {**plan.to_dict(), "seed": None, "group": None},
            "units_per_rank": options.units_per_rank,
            "meta": sorted(options.meta),
            "decoder": "cpu" if self.decoder == "auto" and to is None else self.decoder,
            # The kind of device, without its number.
            "device": {**vars(self.device), "device": to and str(to).partition(":")[0]},
            "verify": options.verify,
            "workers": options.workers.kind,
        }


def check_rows(batch: BatchSpec, image: ImageSpec | None) -> None:
    """Raise `PlanError` for a constant number of rows if images are left out, or differ in size."""
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
