"""LLaVA 1.5 and LLaVA-NeXT: images of one size, and canvases cut into tiles.

`LlavaProcessor` with the image processors of CLIP or SigLIP, and `LlavaNextProcessor`. The number
of tokens is a number of patches: a model that leaves out CLIP's class token takes `"default"` as
`vision_feature_select_strategy`.
"""

from __future__ import annotations

from typing import Any

from datapipe.decode.spec import ImageSpec
from datapipe.models.files import ModelFiles, pixel_options, side_of
from datapipe.text.spec import TextSpec

# Canvases of `LlavaNextImageProcessor`, where none are written down.
_GRIDS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))


def llava(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model with images of one size, or raise `PlanError`."""
    kind = str(files.images.get("image_processor_type", "")).removesuffix("Pil")
    kind = kind.removesuffix("Fast")
    fit: dict[str, Any]
    if kind == "CLIPImageProcessor":
        height, width = side_of(files, "crop_size", 224)
        shorter = side_of(files, "size", 224)[0]
        if files.images.get("do_center_crop") is False:
            raise files.refuse("its images are not cropped to one size")
        fit = {"resize": "crop"} | ({"crop_from": shorter} if shorter != height else {})
        normalize = "clip"
    elif kind == "SiglipImageProcessor":
        height, width = side_of(files, "size", 224)
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
    grids = files.images.get("image_grid_pinpoints") or _GRIDS
    image = ImageSpec(
        resize="tiles",
        size=side_of(files, "size", 224)[0],
        grids=tuple((height, width) for height, width in grids),
        fill=(0, 0, 0),
        patch=patch,
        **pixel_options(files, "clip"),
    )
    return image, files.text(image_token=files.image_token)


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
