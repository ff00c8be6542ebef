"""LLaVA 1.5, LLaVA-NeXT and those after it: images of one size, and canvases cut into tiles.

`LlavaProcessor` with the image processors of CLIP or SigLIP, `LlavaNextProcessor`,
`Granite4VisionProcessor` and `LlavaOnevisionProcessor`. The number of tokens is a number of
patches: a model that leaves out CLIP's class token takes `"default"` as
`vision_feature_select_strategy`. Granite 4 Vision merges patches (`downsample_rate`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import isqrt
from typing import Any

from datapipe.decode.presets import NORMALIZATIONS, PRESETS
from datapipe.decode.spec import ImageSpec
from datapipe.models.files import ModelFiles, pixel_options, side_of
from datapipe.text.spec import TextSpec

# Sides of the canvases of `LlavaOnevisionImageProcessor`, where none are written down.
_SIDES = range(384, 2305, 384)


def llava(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model with images of one size, or raise `PlanError`."""
    kind = str(files.images.get("image_processor_type", "")).removesuffix("Pil")
    kind = kind.removesuffix("Fast")
    fit: dict[str, Any]
    if kind == "CLIPImageProcessor":
        height, width = side_of(files, "crop_size", 224)
        size = files.images.get("size")
        stretched = isinstance(size, Mapping) and size.get("height") is not None
        fitted = side_of(files, "size", 224)
        if files.images.get("do_center_crop") is False or (stretched and fitted != (height, width)):
            raise files.refuse("its images are not cropped to one size")
        fit = {"resize": "stretch" if stretched else "crop"}
        if not stretched and fitted[0] != height:
            fit["crop_from"] = fitted[0]
        normalize = "clip"
    elif kind == "SiglipImageProcessor":
        files.refuse_crops()
        height, width = side_of(files, "size", 224, both=True)
        fit = {"resize": "stretch"}
        normalize = "siglip"
    else:
        raise files.refuse(
            f"its image processor {kind or 'without a type'} is neither CLIPImageProcessor nor "
            "SiglipImageProcessor"
        )
    patch, more = _patch(files)
    tokens = (height // patch) * (width // patch) + more
    image = ImageSpec(
        size=(height, width) if height != width else height,
        patch=patch,
        **fit,
        **pixel_options(files, normalize),
    )
    return image, files.text(image_token=files.image_token, image_tokens=tokens)


def llava_next(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model with canvases of tiles, or raise `PlanError`."""
    patch, more = _patch(files)
    if more:
        raise files.refuse(f"an image has {more} tokens beside those of its patches and rows")
    grids = files.images.get("image_grid_pinpoints") or PRESETS["llava-next"]["grids"]
    image = ImageSpec(
        resize="tiles",
        size=_tile(files, 224, crop=224),
        grids=tuple((height, width) for height, width in grids),
        fill=(0, 0, 0),
        patch=patch,
        **pixel_options(files, "clip"),
    )
    return image, files.text(image_token=files.image_token)


def granite4_vision(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a LLaVA-NeXT whose features are merged, or raise `PlanError`."""
    image, text = llava_next(files)
    rate = files.processor.get("downsample_rate")
    merged = Fraction(1 if rate is None else rate)
    if merged.numerator != 1:
        raise files.refuse(f"downsample_rate is {rate!r}, which is not 1 over a whole number")
    return replace(image, merge=merged.denominator), text


def llava_onevision(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model that cuts only an image that is alone in its sample."""
    processor = files.processor
    if processor.get("vision_feature_select_strategy") == "default":
        raise files.refuse(
            "its vision_feature_select_strategy is 'default', which takes a token away from images"
        )
    aspect = processor.get("vision_aspect_ratio", "anyres_max_9")
    most = re.fullmatch(r"anyres_max_(\d+)", aspect)
    if most is None:
        raise files.refuse(f"its vision_aspect_ratio is {aspect!r}, not 'anyres_max_' and a number")
    files.refuse_crops()
    side = _tile(files, 384, crop=None)
    tokens = processor.get("num_image_tokens")
    if not isinstance(tokens, int) or tokens < 1:
        raise files.refuse(f"num_image_tokens in processor_config.json is {tokens!r}")
    patch = side // isqrt(tokens)
    if not patch or (side // patch) ** 2 != tokens:
        raise files.refuse(f"a tile of {side} x {side} pixels is not a square of {tokens} patches")
    # The mean is rounded down, and is the colour even where it is not subtracted.
    red, green, blue = files.images.get("image_mean") or NORMALIZATIONS["clip"][0]
    grids = files.images.get("image_grid_pinpoints") or [(h, w) for h in _SIDES for w in _SIDES]
    image = ImageSpec(
        resize="tiles",
        size=side,
        grids=tuple((height, width) for height, width in grids),
        fill=(0, 0, 0),
        patch=patch,
        anyres_max=int(most[1]),
        pad_several=(int(red * 255), int(green * 255), int(blue * 255)),
        **pixel_options(files, "clip"),
    )
    return image, files.text(image_token=files.image_token)


def _tile(files: ModelFiles, default: int, *, crop: int | None) -> int:
    """Return the side of a tile, in pixels; `crop` is the default of what is cut out of one."""
    height, width = side_of(files, "size", default)
    if side_of(files, "crop_size", crop or height) != (height, height) or height != width:
        raise files.refuse(
            f"its tiles have {height} x {width} pixels, which is not a square as large as crop_size"
        )
    return height


def _patch(files: ModelFiles) -> tuple[int, int]:
    """Return the side of a patch, and the tokens that are added to those of all patches."""
    processor, vision = files.processor, files.vision
    patch = processor.get("patch_size") or vision.get("patch_size")
    if not isinstance(patch, int):
        raise files.refuse("neither processor_config.json nor config.json has a patch_size")
    chosen = processor.get("vision_feature_select_strategy")
    chosen = chosen or files.config.get("vision_feature_select_strategy")
    more = processor.get("num_additional_image_tokens")
    if more is None:  # files from before the processor counted it
        more = 1 if vision.get("model_type") == "clip_vision_model" else 0
    return patch, more - (chosen == "default")
