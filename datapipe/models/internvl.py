"""InternVL 3 and 3.5 in the form of transformers: tiles and a thumbnail.

`InternVLProcessor` with `GotOcr2ImageProcessor`. A tile has `image_seq_length` tokens,
`<IMG_CONTEXT>` each; `<img>` and `</img>` stand around all tiles of an image.
"""

from __future__ import annotations

from datapipe.decode.spec import ImageSpec
from datapipe.models.files import ModelFiles, merge_of_tiles, pixel_options, side_of
from datapipe.text.spec import TextSpec


def internvl(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    images = files.images
    # The processor cuts images into tiles, whatever its image processor's own default is.
    if images.get("crop_to_patches", True) is False and files.processor_class is None:
        raise files.refuse("its images are not cut into tiles")
    if (least := images.get("min_patches", 1)) != 1:
        raise files.refuse(f"its images have at least {least} tiles")
    height, width = side_of(files, "size", 384)
    if height != width:
        raise files.refuse(f"its tiles have {height} x {width} pixels, which is not a square")
    tokens = files.processor.get("image_seq_length", 256)
    patch = files.vision.get("patch_size", 14)
    patch = patch[0] if isinstance(patch, list) else patch
    patch, merge = merge_of_tiles(files, height, (patch,), tokens)
    image = ImageSpec(
        resize="tiles",
        size=height,
        tiles=images.get("max_patches", 12),
        patch=patch,
        merge=merge,
        **pixel_options(files, "clip"),
    )
    return image, files.text(image_token=files.image_token)
