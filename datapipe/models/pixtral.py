"""Pixtral and Mistral Small 3: images of their own size, each row of tokens with an end.

`PixtralProcessor` with `PixtralImageProcessor`. An image is rows of `[IMG]`, one for each square of
merged patches, with `[IMG_BREAK]` between rows and `[IMG_END]` after the last.
"""

from __future__ import annotations

from datapipe.decode.spec import ImageSpec
from datapipe.models.files import ModelFiles, pixel_options
from datapipe.text.image_markup import ImageMarkup
from datapipe.text.spec import TextSpec


def pixtral(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    size = files.images.get("size") or {"longest_edge": 1024}
    longest = size.get("longest_edge")
    if not isinstance(longest, int):
        raise files.refuse(f"size of its image processor is {size!r}, without a longest_edge")
    if files.images.get("do_center_crop"):
        raise files.refuse("its images are cropped (do_center_crop=true)")
    processor = files.processor
    image = ImageSpec(
        resize="dynamic",
        patch=processor.get("patch_size", 16),
        merge=processor.get("spatial_merge_size", 1),
        longest=longest,
        **pixel_options(files, "clip"),
    )
    markup = ImageMarkup(
        between_rows=processor.get("image_break_token", "[IMG_BREAK]"),
        end=processor.get("image_end_token", "[IMG_END]"),
    )
    return image, files.text(image_token=processor.get("image_token", "[IMG]"), image_markup=markup)
