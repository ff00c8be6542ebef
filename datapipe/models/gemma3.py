"""Gemma 3: images of one size, each 256 tokens.

`Gemma3Processor` with `Gemma3ImageProcessor`. An image is a run of `<image_soft_token>` between
`<start_of_image>` and `<end_of_image>`, with two line feeds on either side. Tokens of an image see
each other, for which the model takes `token_type_ids`.
"""

from __future__ import annotations

from datapipe.decode.spec import ImageSpec
from datapipe.models.files import ModelFiles, pixel_options, side_of
from datapipe.text.spec import TextSpec


def gemma3(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    if files.images.get("do_pan_and_scan"):
        raise files.refuse("its image processor also takes crops (do_pan_and_scan=true)")
    height, width = side_of(files, "size", 224)
    image = ImageSpec(
        size=height if height == width else (height, width),
        resize="stretch",
        **pixel_options(files, "siglip", resample=2),
    )
    return image, files.text(
        image_tokens=files.processor.get("image_seq_length", 256),
        image_token="<image_soft_token>",
        token_types=True,
    )
