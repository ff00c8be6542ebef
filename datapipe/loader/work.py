"""Work on each sample: its images, text and cache, as asked for and as a dataset needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from datapipe.cache.spec import CacheSpec
from datapipe.decode.array_spec import image_identity, spec_of
from datapipe.decode.dali.options import DaliOptions
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import form_of
from datapipe.errors import PlanError
from datapipe.index.dataset import Dataset
from datapipe.index.mixture import DatasetPart
from datapipe.loader.batch.image_batch import GEOMETRY
from datapipe.loader.batch.user_transform import UserTransform
from datapipe.loader.schedule.options import LoaderOptions
from datapipe.loader.schedule.state import compare
from datapipe.loader.specs import BatchSpec, DeviceSpec
from datapipe.plan.options import PlanOptions
from datapipe.text.spec import TextSpec

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
            "give sample_patches= instead"
        )


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
