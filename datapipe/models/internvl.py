"""InternVL 3 and 3.5 in the form of transformers: tiles and a thumbnail.

`InternVLProcessor` with `GotOcr2ImageProcessor`. A tile has `image_seq_length` tokens,
`<IMG_CONTEXT>` each; `<img>` and `</img>` stand around all tiles of an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

from datapipe.decode.presets import NORMALIZATIONS
from datapipe.decode.spec import ImageSpec
from datapipe.models.files import ModelFiles, pixel_options, side_of
from datapipe.text.spec import TextSpec


def internvl(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family.

    Raises:
        PlanError: its image processor has an option that cannot be followed.
    """
    images = files.images
    # The processor cuts images into tiles, whatever its image processor's own default is.
    if images.get("crop_to_patches", True) is False and files.processor_class is None:
        raise files.refuse("its images are not cut into tiles")
    if (least := images.get("min_patches", 1)) != 1:
        raise files.refuse(f"its images have at least {least} tiles")
    height, width = side_of(files, "size", 384)
    if height != width:
        raise files.refuse(f"its tiles have {height} x {width} pixels, which is no square")
    tokens = files.processor.get("image_seq_length", 256)
    side = isqrt(tokens)
    vision = files.config.get("vision_config") or {}
    patch = vision.get("patch_size", 14)
    patch = patch[0] if isinstance(patch, list) else patch
    merge = max(1, height // patch // max(side, 1))
    if (height // patch // merge) ** 2 != tokens:
        raise files.refuse(
            f"a tile of {height} x {width} pixels in patches of {patch} has not {tokens} tokens"
        )
    mean, std = NORMALIZATIONS["clip"]
    image = ImageSpec(
        resize="tiles",
        size=height,
        tiles=images.get("max_patches", 12),
        patch=patch,
        merge=merge,
        **pixel_options(files, mean=mean, std=std),
    )
    token = _context_token(files)
    return image, TextSpec(
        tokenizer=files.tokenizer, template=files.template, image_token=token, add_bos=True
    )


def _context_token(files: ModelFiles) -> str | None:
    """Return the token that is repeated; None leaves it to the tokenizer's own names."""
    token = files.processor.get("image_token")
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None
