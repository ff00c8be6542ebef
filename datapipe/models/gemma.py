"""Gemma 3 and 3n, with images of one size, and Gemma 4, with images that fill a budget of tokens.

`Gemma3Processor` with `Gemma3ImageProcessor`. An image is 256 `<image_soft_token>` between
`<start_of_image>` and `<end_of_image>`, with two line feeds on either side. Tokens of an image see
each other, for which the model takes `token_type_ids`. `Gemma3nProcessor` writes the same with the
image processor of SigLIP, and the model needs no types.

`Gemma4Processor` with `Gemma4ImageProcessor`. An image is a run of `<|image|>` between `<|image>`
and `<image|>`. Tokens of an image see each other in the larger models only, for which they take
`mm_token_type_ids`. `Gemma4UnifiedProcessor` (Gemma 4 12B) does the same, with a token's patches as
one.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from datapipe.decode.spec import ImageSpec
from datapipe.models.files import ModelFiles, pixel_options, side_of
from datapipe.text.markup import ImageMarkup
from datapipe.text.spec import TextSpec

_ZERO, _ONE = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)


def gemma3(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    if files.images.get("do_pan_and_scan"):
        raise files.refuse("its image processor also takes crops (do_pan_and_scan=true)")
    return _one_size(files, resample=2, token_types=True)


def gemma3n(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    files.refuse_crops()
    return _one_size(files, resample=3, token_types=False)


def _one_size(files: ModelFiles, *, resample: int, token_types: bool) -> tuple[ImageSpec, TextSpec]:
    height, width = side_of(files, "size", 224, both=True)
    image = ImageSpec(
        size=height if height == width else (height, width),
        resize="stretch",
        **pixel_options(files, "siglip", resample=resample),
    )
    return image, files.text(
        image_tokens=files.processor.get("image_seq_length", 256),
        image_token="<image_soft_token>",
        token_types=token_types,
    )


def gemma4(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    return _budget(files, sees=None)


def gemma4_unified(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of Gemma 4 12B, or raise `PlanError`."""
    image, text = _budget(files, sees="vision")
    return replace(image, patch=image.patch_side * image.merge, merge=1), text


def _budget(files: ModelFiles, *, sees: str | None) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model that `sees` what its own config says by default."""
    images = files.images
    options = pixel_options(files, (_ZERO, _ONE))
    if images.get("do_normalize", False) and options["normalize"] != (_ZERO, _ONE):
        raise files.refuse("its images are normalised (do_normalize=true)")
    image = ImageSpec(
        resize="budget",
        patch=images.get("patch_size", 16),
        merge=images.get("pooling_kernel_size", 3),
        tokens=images.get("max_soft_tokens", 280),
        **options | {"normalize": None, "dtype": torch.float32},
    )
    text = files.config.get("text_config") or {}
    # A processor does not say. Smaller models ignore the types.
    vision = not files.config or text.get("use_bidirectional_attention", sees) == "vision"
    return image, files.text(
        image_token="<|image|>",
        image_markup=ImageMarkup(start="<|image>", end="<image|>"),
        token_types="mm_token_type_ids" if vision else False,
    )
