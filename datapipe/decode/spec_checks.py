"""Checks of an `ImageSpec`: options that mean nothing together, or contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from datapipe.errors import PlanError

if TYPE_CHECKING:
    from datapipe.decode.spec import ImageSpec

ONE_SIZE = ("stretch", "pad", "crop")
"""Values of `resize` that give all images one size."""

# Options of some values of `resize` alone.
_TAKEN_BY = {
    "size": (*ONE_SIZE, "shortest", "tiles", "naflex"),
    "fill": ("pad", "tiles"),
    "crop_from": ("crop",),
    "temporal": ("native",),
    "patch_order": ("native",),
    "merge_sizes": ("native",),
    "mrope": ("native",),
    "video": ("native",),
    "min_pixels": ("dynamic", "native", "naflex"),
    "max_pixels": ("dynamic", "native", "naflex"),
    "least_side": ("native",),
    "longest": ("dynamic", "tiles"),
    "tokens": ("budget",),
    "tiles": ("tiles", "naflex"),
    "tiles_by": ("tiles",),
    "grids": ("tiles",),
    "anyres_max": ("tiles",),
    "pad_several": ("tiles",),
    "thumbnail": ("tiles", "naflex"),
    "random_crop": ("stretch", "crop"),
    "flip": ("stretch", "crop"),
}

# Remedies for an option that was given with another value of `resize`.
_REMEDIES = {
    "size": "leave it out, and bound the result by min_pixels and max_pixels",
    "max_pixels": (
        "leave it out; an input with too many pixels is refused by refuse_above, and an output of "
        "a given size has as many as size says"
    ),
    "mrope": "leave it out, and tokens have ordinary positions",
}


def check_together(spec: ImageSpec) -> None:
    """Raise `PlanError` for options that mean nothing for `resize`, or contradict each other."""
    if spec.dtype == torch.uint8 and spec.normalize is not None:
        raise PlanError(
            "normalised values do not fit into torch.uint8; use torch.float32 or "
            "torch.bfloat16, or normalize=None"
        )
    for name, modes in _TAKEN_BY.items():
        value = getattr(spec, name)
        if spec.resize not in modes and value != type(spec).__dataclass_fields__[name].default:
            taken = " and ".join(f"resize={mode!r}" for mode in modes)
            raise PlanError(
                f"{name}={value!r} has no effect with resize={spec.resize!r}, only with {taken}; "
                + _REMEDIES.get(name, "leave it out")
            )
    if spec.resize in ("shortest", "tiles", "naflex") and isinstance(spec.size, tuple):
        what = "it is the shorter side's" if spec.resize == "shortest" else "a tile is square"
        raise PlanError(f"size {spec.size!r} for resize={spec.resize!r}: {what}; give one number")
    if spec.crop_from is not None and spec.crop_from < max(spec.height, spec.width):
        raise PlanError(
            f"crop_from={spec.crop_from} is less than the {spec.height} x {spec.width} pixels to "
            "be cut out; give at least as many, or leave it out"
        )
    if spec.resize == "budget" and (spec.tokens is None or spec.normalize is not None):
        raise PlanError(
            "resize='budget' needs tokens=, the most of an image, and takes normalize=None: models "
            "of this form take pixels from 0 to 1"
        )
    if spec.patch_order == "rows" and (spec.temporal != 1 or spec.video is not None):
        raise PlanError(
            f"patch_order='rows' with temporal={spec.temporal} and video={spec.video}: models of "
            "this order take patches of one frame; leave temporal and video out"
        )
    if spec.longest is not None:
        for name in ("min_pixels", "max_pixels", "tiles", "grids", "fill"):
            if (value := getattr(spec, name)) is not None:
                raise PlanError(
                    f"longest={spec.longest} and {name}={value!r} are two rules for the size of an "
                    "image; give one of them, and None for the other"
                )
    unit = spec.patch_side * spec.merge
    if spec.resize in ("dynamic", "native", "naflex"):
        least, most = spec.pixel_limits
        if least > most:
            raise PlanError(
                f"min_pixels={least:,} is above max_pixels={most:,}; give a range, both ends of it"
            )
        if most < unit * unit:
            raise PlanError(
                f"max_pixels={most:,} is less than one token of {unit} x {unit} pixels; give at "
                f"least {unit * unit:,}"
            )
    elif spec.patch is None and spec.merge != 1:
        raise PlanError(
            f"merge={spec.merge} has no effect without the side of the patches that are merged; "
            "give patch too"
        )
    elif spec.resize != "budget" and spec.patch and min(spec.height, spec.width) < unit:
        raise PlanError(
            f"size {spec.height} x {spec.width} is smaller than one token of {unit} x {unit} "
            "pixels; give a larger size or a smaller patch"
        )
    if spec.resize == "tiles":
        _check_tiles(spec)
    if spec.resize == "naflex":
        _check_naflex(spec, unit)


def _check_naflex(spec: ImageSpec, unit: int) -> None:
    if spec.height % unit:
        raise PlanError(
            f"size {spec.height} for resize='naflex' does not consist of whole tokens of {unit} x "
            f"{unit} pixels; give a multiple of {unit} as the side of a tile"
        )
    for values in spec.mean_std or ():
        if len(set(values)) > 1:
            raise PlanError(
                f"normalize={spec.normalize!r} for resize='naflex': models of this form take one "
                "mean and one std for all channels; give 'siglip', or three equal values"
            )


def _check_tiles(spec: ImageSpec) -> None:
    if spec.tiles_by != "aspect" and (spec.grids or spec.longest) is not None:
        raise PlanError(
            f"tiles_by={spec.tiles_by!r} has no effect with grids or longest, which are rules of "
            "their own; leave it out"
        )
    if spec.grids is None:
        for name in ("anyres_max", "pad_several"):
            if (value := getattr(spec, name)) is not None:
                raise PlanError(
                    f"{name}={value!r} has no effect on tiles without grids, the canvases of the "
                    "LLaVA family; leave it out, or give grids"
                )
        if spec.fill is not None and spec.tiles_by == "aspect":
            raise PlanError(
                f"fill={spec.fill} has no effect on tiles without grids, where images are "
                "stretched to the tiles and nothing is padded; leave it out"
            )
        return
    if spec.tiles is not None:
        raise PlanError(
            f"tiles={spec.tiles} and grids={spec.grids!r} are two rules, InternVL's and "
            "LLaVA-NeXT's; give one of them, and None for the other"
        )
    if not spec.thumbnail:
        raise PlanError(
            "thumbnail=False with grids: models of the LLaVA-NeXT family always take the tile that "
            "shows the whole image; leave it out"
        )
    for grid in spec.grids:
        if grid[0] % spec.height or grid[1] % spec.width:
            raise PlanError(
                f"grid {grid} does not consist of whole tiles of {spec.height} x {spec.width}; "
                "give multiples of size"
            )
