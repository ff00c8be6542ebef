"""Specs of images before they are normalized, and the form of those of arrays in a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from datapipe.decode.spec import ImageSpec
from datapipe.decode.spec_checks import ONE_SIZE
from datapipe.errors import PlanError

_OPTIONS = ("resize", "interpolation", "crop_from", "scaled_decode")


def unnormalized(image: ImageSpec) -> ImageSpec:
    """Return the spec of the same images as uint8; their borders keep their color."""
    # The default color of borders is the mean that is subtracted.
    fill = image.fill_color if image.fills_borders else None
    return replace(image, normalize=None, dtype=torch.uint8, fill=fill)


def array_spec(image: ImageSpec) -> ImageSpec:
    """Return the spec of images in arrays, uint8; `PlanError` for options that arrays rule out."""
    if not image.one_size:
        raise PlanError(
            f"resize={image.resize!r} gives images of many sizes, but arrays need one size; "
            f"give one of {', '.join(ONE_SIZE)}, or keep shards"
        )
    if image.random_crop is not None:
        raise PlanError(
            "random_crop takes a different part of an image each time, but arrays hold one; keep "
            "shards, or leave it out"
        )
    if image.max_frames is not None:
        raise PlanError(
            f"max_frames={image.max_frames} chooses among the frames of shards, but arrays hold "
            "all that were packed; leave it out, or keep shards"
        )
    return replace(unnormalized(image), flip=0.0)


def image_identity(image: ImageSpec) -> dict[str, Any]:
    """Return the options that pixels depend on, as JSON has them."""
    kept = array_spec(image)
    identity: dict[str, Any] = {name: getattr(kept, name) for name in _OPTIONS}
    identity["size"] = [kept.height, kept.width]
    if kept.fills_borders:
        identity["fill"] = list(kept.fill_color)
    return identity


def spec_of(image: Mapping[str, Any]) -> ImageSpec:
    """Return the `ImageSpec` of arrays with this `image_identity`."""
    identity = dict(image)
    fill = identity.pop("fill", None)
    size = tuple(identity.pop("size"))
    return ImageSpec(**identity, size=size, fill=None if fill is None else tuple(fill))
