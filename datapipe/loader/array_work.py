"""Work on datasets of arrays, whose images are decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from datapipe.decode.array_spec import image_identity, spec_of
from datapipe.decode.dali.options import DaliOptions
from datapipe.decode.spec import ImageSpec
from datapipe.errors import PlanError
from datapipe.index.dataset import Dataset
from datapipe.index.dataset_mixture import DatasetMixture
from datapipe.index.manifest import Arrays
from datapipe.loader.work import Work


@dataclass(frozen=True)
class _Held:
    """A dataset of arrays.

    Attributes:
        name: in the mixture; None for a dataset alone.
        images: of its samples, which it may not hold.
        own: its `ImageSpec`; None if it has that of the loader.
    """

    name: str | None
    arrays: Arrays
    images: int
    own: ImageSpec | None


def on_arrays(
    work: Work, dataset: Dataset, own: Sequence[ImageSpec | None], *, image_given: bool
) -> Work:
    """Return the work that is left if datasets are arrays.

    Args:
        dataset: alone, or a mixture.
        own: `ImageSpec` of each dataset of a mixture; None where it has that of `work`.
        image_given: whether a person gave the `ImageSpec` of `work`; else it is that of the arrays.

    Raises:
        PlanError: the work cannot be done on arrays, or they hold other images.
    """
    held, count = _held(dataset, own)
    if not held:
        return work
    stored = [one for one in held if one.arrays.image]
    image = work.image
    if not image_given and stored:
        image = spec_of(stored[0].arrays.image)
    elif not image_given and len(held) == count:
        image = None
    if work.cache is not None and work.cache.keeps_on_host:
        raise PlanError(
            f"{_prefix(held[0])}cache: arrays are decoded, and the page cache keeps what was read "
            "of them; leave it out, or give CacheSpec(device=...)"
        )
    if image is not None:
        for one in stored[1:]:
            _check_alike(stored[0], one)
        for one in held:
            try:
                _check(one, work, image if one.own is None else one.own)
            except PlanError as error:
                raise PlanError(f"{_prefix(one)}{error}") from error
    return replace(work, image=image, decoder="cpu")


def _held(dataset: Dataset, own: Sequence[ImageSpec | None]) -> tuple[list[_Held], int]:
    """Return the datasets of arrays, and the number of all datasets."""
    if isinstance(dataset, DatasetMixture):
        parts = zip(dataset.parts, own, strict=True)
        held = [
            _Held(part.name, part.arrays, part.counts.images, image)
            for part, image in parts
            if part.arrays is not None
        ]
        return held, len(dataset.parts)
    arrays = dataset.manifest.arrays
    return [] if arrays is None else [_Held(None, arrays, dataset.manifest.images, None)], 1


def _prefix(one: _Held) -> str:
    return "" if one.name is None else f"dataset {one.name!r} of the mixture: "


def _check(one: _Held, work: Work, image: ImageSpec) -> None:
    """Refuse work that cannot be done on the images of a dataset.

    Raises:
        PlanError: it cannot.
    """
    arrays = one.arrays
    if one.images and not arrays.image:
        raise PlanError(
            f"the arrays hold no images, and their samples have {one.images:,}; "
            "give image=None, or convert the shards again, with images"
        )
    if arrays.image and work.transform is not None:
        raise PlanError(
            "transform= takes images before they are fitted, and arrays hold them after; "
            "read the shards that they came from"
        )
    is_dali = isinstance(work.decoder, DaliOptions) or work.decoder == "dali"
    if is_dali and (arrays.image or one.name is not None):
        raise PlanError("decoder='dali': arrays are decoded already; leave it out")
    if arrays.image:
        _check_same_images(arrays, image)


def _check_alike(first: _Held, second: _Held) -> None:
    """Refuse images that two datasets of a mixture store in different forms.

    Raises:
        PlanError: the forms differ.
    """
    here, there = first.arrays.image, second.arrays.image
    different = [
        f"{name}: {here.get(name)!r} of {first.name}, {there.get(name)!r} of {second.name}"
        for name in sorted(here.keys() | there.keys())
        if here.get(name) != there.get(name)
    ]
    if different:
        raise PlanError(
            f"the arrays of {first.name} and {second.name} hold images of different forms "
            f"({'; '.join(different)}); convert the shards of one again, or mix its shards"
        )


def _check_same_images(arrays: Arrays, image: ImageSpec) -> None:
    """Raise unless the images of arrays are those that `image` asks for.

    Raises:
        PlanError: they are others.
    """
    asked = image_identity(image)
    different = [
        f"{name}: {arrays.image.get(name)!r} there, {asked.get(name)!r} asked for"
        for name in sorted(arrays.image.keys() | asked.keys())
        if arrays.image.get(name) != asked.get(name)
    ]
    if different:
        stored = spec_of(arrays.image)
        given = ", ".join(
            f"{field.name}={getattr(stored, field.name)!r}"
            for field in fields(ImageSpec)
            if field.name in (*arrays.image, "size")
            and getattr(stored, field.name) != field.default
        )
        raise PlanError(
            f"the arrays hold other images ({'; '.join(different)}); give ImageSpec({given}), or "
            "convert the shards again"
        )
