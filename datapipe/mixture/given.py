"""Mixtures as arguments of `make_loader`, and the options that all of their datasets have."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datapipe.declared import shorten
from datapipe.errors import PlanError
from datapipe.mixture.spec import Mixture
from datapipe.text.spec import TextSpec, with_image_tokens

if TYPE_CHECKING:  # imports torch, which planning does not need
    from datapipe.decode.spec import ImageSpec

FILES = (".yaml", ".yml", ".json")
"""Endings of files that hold a mixture."""


def mixture_of(
    given: str | PathLike[str] | Mixture | Mapping[Any, Any] | Sequence[str | PathLike[str]],
) -> Mixture:
    """Return what was given as a mixture: a dataset is one of itself.

    A list of datasets is the mixture that draws each sample once. A list of `.tar` shards is one
    dataset, as if `::` stood between them. All else is a `PlanError`.
    """
    if isinstance(given, Mixture | Mapping):
        return Mixture.of(given)
    paths = [given] if isinstance(given, str | PathLike) else given
    names = [os.fspath(each) for each in paths]
    if not names:
        raise PlanError("path []: give at least one dataset")
    if all(name.endswith(".tar") and "://" not in name for name in names):
        return Mixture.of_dataset("::".join(names))
    if len(names) > 1:
        again = next((name for name, count in Counter(names).items() if count > 1), None)
        if again is not None:
            raise PlanError(
                f"path names {shorten(again)} twice; name each dataset once, or give a mixture "
                f"such as {{{again!r}: '2x'}} to draw its samples more often"
            )
        return Mixture.of({"datasets": names})
    path = names[0]
    if not path.endswith(FILES) or Path(path).is_dir():
        return Mixture.of_dataset(path)
    if "://" in path:
        raise PlanError(
            f"path {shorten(path)}: the file of a mixture must be local; download it, and "
            "give the URLs of its datasets in it"
        )
    return Mixture.load(path)


def image_of(mixture: Mixture, image: ImageSpec | None, *, given: bool) -> ImageSpec | None:
    """Return the `ImageSpec` of datasets without their own, or one of theirs if all have one."""
    if given or any(dataset.image is None for dataset in mixture.datasets):
        return image
    return mixture.datasets[0].image


def text_of(
    mixture: Mixture, text: TextSpec | None, image: ImageSpec | None = None
) -> TextSpec | None:
    """Return the text options of the dataset with the fewest tokens for an image, if any has some.

    `text` and `image` are for datasets that have none; without `image`, images are left out of all.
    `PlanError` if some datasets have text options, and others none.
    """
    having = [entry for entry in mixture.datasets if entry.text or text]
    lacking = [entry for entry in mixture.datasets if not (entry.text or text)]
    if having and lacking:
        raise PlanError(
            f"{lacking[0].place}dataset {shorten(lacking[0].name)} of the mixture has no text, and "
            f"{shorten(having[0].name)} has; give text=TextSpec(...) to make_loader, or text: to "
            "the whole mixture"
        )
    specs = []
    for entry in having:
        spec = entry.text or text
        assert spec is not None
        try:
            specs.append(with_image_tokens(spec, image and (entry.image or image)))
        except PlanError as error:
            raise PlanError(f"{entry.prefix}{error}") from None

    def tokens(spec: TextSpec) -> int:
        return spec.image_tokens if isinstance(spec.image_tokens, int) else 0

    return min(specs, key=tokens, default=None)
