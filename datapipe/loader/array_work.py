"""Work that there is on a dataset, whose images may be decoded already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from datapipe.decode.array_spec import image_identity, spec_of
from datapipe.decode.spec import ImageSpec
from datapipe.errors import PlanError
from datapipe.index.dataset import Dataset
from datapipe.index.dataset_part import DatasetPart
from datapipe.loader.work import Work


def work_on(
    dataset: Dataset, work: Work, own: Sequence[ImageSpec | None], *, image_given: bool
) -> Work:
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
            f"{held[0][0].prefix}cache: arrays are decoded, and the page cache keeps what was read "
            "of them; leave it out, or give CacheSpec(device=...)"
        )
    if image is not None:
        _check_alike(forms)
        for part, form, its in held:
            try:
                _check(part, form, work, its or image)
            except PlanError as error:
                raise PlanError(f"{part.prefix}{error}") from error
    return replace(work, image=image, decoder="cpu")


def _check(part: DatasetPart, form: Mapping[str, Any], work: Work, image: ImageSpec) -> None:
    """Raise `PlanError` for work that cannot be done on images that are stored in `form`."""
    if part.counts.images and not form:
        raise PlanError(
            f"the arrays hold no images, and their samples have {part.counts.images:,}; "
            "give image=None, or convert the shards again, with images"
        )
    if form and work.transform is not None:
        raise PlanError(
            "transform= takes images before they are fitted, and arrays hold them after; "
            "read the shards that they came from"
        )
    if work.asks_for_dali:
        raise PlanError("decoder='dali': arrays are decoded already; leave it out")
    if form and (different := _differences(form, image_identity(image), "there", "asked for")):
        stored = spec_of(form)
        options = ", ".join(
            f"{field.name}={getattr(stored, field.name)!r}"
            for field in fields(ImageSpec)
            if field.name in (*form, "size") and getattr(stored, field.name) != field.default
        )
        raise PlanError(
            f"the arrays hold other images ({different}); give ImageSpec({options}), or convert "
            "the shards again"
        )


def _check_alike(forms: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise `PlanError` if datasets, by name, store images in different forms."""
    first = next(iter(forms), "")
    for name, form in forms.items():
        if different := _differences(forms[first], form, f"of {first}", f"of {name}"):
            raise PlanError(
                f"the arrays of {first} and {name} hold images of different forms ({different}); "
                "convert the shards of one again, or mix its shards"
            )


def _differences(
    one: Mapping[str, Any], other: Mapping[str, Any], of_one: str, of_other: str
) -> str:
    return "; ".join(
        f"{name}: {one.get(name)!r} {of_one}, {other.get(name)!r} {of_other}"
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    )
