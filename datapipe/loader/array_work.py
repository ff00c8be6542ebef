"""Work on datasets of arrays, whose images are decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from datapipe.decode.array_spec import image_identity, spec_of
from datapipe.decode.dali.options import DaliOptions
from datapipe.decode.spec import ImageSpec
from datapipe.errors import PlanError
from datapipe.index.dataset import Dataset
from datapipe.index.manifest import Arrays
from datapipe.loader.work import Work

Form = Mapping[str, Any]
"""Facts about the images of a dataset of arrays."""


def on_arrays(
    work: Work, dataset: Dataset, own: Sequence[ImageSpec | None], *, image_given: bool
) -> Work:
    """Return the work that is left if datasets are arrays.

    Args:
        own: `ImageSpec` of each part of the dataset; None where it has that of `work`.
        image_given: whether a person gave the `ImageSpec` of `work`; else it is that of the arrays.

    Raises:
        PlanError: the work cannot be done on arrays, or they hold other images.
    """
    given = zip(dataset.parts, own, strict=True)
    held = [(part, part.arrays, image) for part, image in given if part.arrays is not None]
    if not held:
        return work
    stored = [part for part, arrays, _ in held if arrays.image]
    forms = [arrays.image for _, arrays, _ in held if arrays.image]
    image = work.image
    if not image_given and forms:
        image = spec_of(forms[0])
    elif not image_given and len(held) == len(dataset.parts):
        image = None
    if work.cache is not None and work.cache.keeps_on_host:
        raise PlanError(
            f"{held[0][0].prefix}cache: arrays are decoded, and the page cache keeps what was read "
            "of them; leave it out, or give CacheSpec(device=...)"
        )
    if image is not None:
        for part, form in zip(stored[1:], forms[1:], strict=True):
            _check_alike((stored[0].name, forms[0]), (part.name, form))
        for part, arrays, its_own in held:
            try:
                _check(arrays, part.counts.images, work, its_own or image)
            except PlanError as error:
                raise PlanError(f"{part.prefix}{error}") from error
    return replace(work, image=image, decoder="cpu")


def _check(arrays: Arrays, images: int, work: Work, image: ImageSpec) -> None:
    """Refuse work that cannot be done on the images of a dataset.

    Args:
        images: of its samples, which it may not hold.

    Raises:
        PlanError: it cannot.
    """
    if images and not arrays.image:
        raise PlanError(
            f"the arrays hold no images, and their samples have {images:,}; "
            "give image=None, or convert the shards again, with images"
        )
    if arrays.image and work.transform is not None:
        raise PlanError(
            "transform= takes images before they are fitted, and arrays hold them after; "
            "read the shards that they came from"
        )
    is_dali = isinstance(work.decoder, DaliOptions) or work.decoder == "dali"
    if is_dali:
        raise PlanError("decoder='dali': arrays are decoded already; leave it out")
    if arrays.image:
        _check_same_images(arrays, image)


def _check_alike(first: tuple[str, Form], second: tuple[str, Form]) -> None:
    """Refuse images that two datasets of a mixture store in different forms.

    Args:
        first, second: name and form of each.

    Raises:
        PlanError: the forms differ.
    """
    (name, here), (other, there) = first, second
    different = [
        f"{fact}: {here.get(fact)!r} of {name}, {there.get(fact)!r} of {other}"
        for fact in sorted(here.keys() | there.keys())
        if here.get(fact) != there.get(fact)
    ]
    if different:
        raise PlanError(
            f"the arrays of {name} and {other} hold images of different forms "
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
