"""Gemma 4: images that fill a budget of tokens.

`Gemma4Processor` with `Gemma4ImageProcessor`. An image is a run of `<|image|>` between `<|image>`
and `<image|>`. In the larger models, tokens of an image see each other, for which they take
`mm_token_type_ids`.
"""

from __future__ import annotations

import torch

from datapipe.decode.spec import ImageSpec
from datapipe.models.files import ModelFiles, pixel_options
from datapipe.text.markup import ImageMarkup
from datapipe.text.spec import TextSpec

_ZERO, _ONE = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)


def gemma4(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    images = files.images
    options = pixel_options(files, (_ZERO, _ONE))
    if images.get("do_normalize", False) and options["normalize"] != (_ZERO, _ONE):
        raise files.refuse("its images are normalised (do_normalize=true)")
    image = ImageSpec(
        resize="budget",
        patch=images.get("patch_size", 16),
        merge=images.get("pooling_kernel_size", 3),
        tokens=images.get("max_soft_tokens", 280),
        dtype=torch.float32,
        **options | {"normalize": None},
    )
    text = files.config.get("text_config") or {}
    # A processor does not say. Smaller models ignore the types.
    vision = not files.config or text.get("use_bidirectional_attention") == "vision"
    return image, files.text(
        image_token="<|image|>",
        image_markup=ImageMarkup(start="<|image>", end="<image|>"),
        token_types="mm_token_type_ids" if vision else False,
    )
