"""Encoded images to rows of `pixel_values`, as an `ImageSpec` says: the choice of a form."""

from __future__ import annotations

from datapipe.decode.forms.budget import BudgetTransform
from datapipe.decode.forms.fixed import FixedTransform
from datapipe.decode.forms.image_transform import ImageTransform
from datapipe.decode.forms.naflex import NaflexTransform
from datapipe.decode.forms.native import NativeTransform
from datapipe.decode.forms.padded import PaddedTransform
from datapipe.decode.forms.tiles import (
    AnyresTransform,
    CornerTilesTransform,
    ScaledTilesTransform,
    TilesTransform,
)
from datapipe.decode.spec import ImageSpec
from datapipe.geometry.crop import Draw, Placement

__all__ = ["Draw", "ImageTransform", "Placement", "form_of", "make_transform"]

_FORMS: dict[str, type[ImageTransform]] = {
    "shortest": PaddedTransform,
    "dynamic": PaddedTransform,
    "budget": BudgetTransform,
    "native": NativeTransform,
    "naflex": NaflexTransform,
    "tiles": TilesTransform,
}


def form_of(spec: ImageSpec) -> type[ImageTransform]:
    """Return the form of the images of `spec`, which has facts about all of its transforms."""
    if spec.resize == "tiles":
        if spec.grids is not None:
            return AnyresTransform
        if spec.longest is not None:
            return ScaledTilesTransform
        if spec.fill is not None:
            return CornerTilesTransform
    return _FORMS.get(spec.resize, FixedTransform)


def make_transform(spec: ImageSpec) -> ImageTransform:
    """Return the transform for `spec`."""
    return form_of(spec)(spec)
