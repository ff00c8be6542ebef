"""Pixtral, Mistral Small 3 and LightOnOCR: images of their own size.

`PixtralProcessor` and `LightOnOcrProcessor`, both with `PixtralImageProcessor`. An image of Pixtral
is rows of `[IMG]`, one for each square of merged patches, with `[IMG_BREAK]` between rows and
`[IMG_END]` after the last. One of LightOnOCR is as many `<|image_pad|>`, without a break.
"""

from __future__ import annotations

from datapipe.decode.spec import ImageSpec
from datapipe.models.files import ModelFiles, pixel_options, side_of
from datapipe.text.markup import ImageMarkup
from datapipe.text.spec import TextSpec


def pixtral(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    named = files.processor
    markup = ImageMarkup(
        between_rows=named.get("image_break_token", "[IMG_BREAK]"),
        end=named.get("image_end_token", "[IMG_END]"),
    )
    text = files.text(image_token=named.get("image_token", "[IMG]"), image_markup=markup)
    return _image(files, patch=16, merge=1), text


def lighton_ocr(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of LightOnOCR, or raise `PlanError`."""
    nothing = ImageMarkup()  # Without one, Qwen's tokens would stand around those of an image.
    text = files.text(image_token=files.image_token, image_markup=nothing)
    image = _image(files, patch=14, merge=2)
    side, token = side_of(files, "patch_size", 16), image.patch_side * image.merge
    if side != (token, token):
        raise files.refuse(
            f"sides of its images are multiples of {side}, and those of a token are {token} pixels"
        )
    return image, text


def _image(files: ModelFiles, *, patch: int, merge: int) -> ImageSpec:
    """Return the options of images, with the processor's own `patch` and `merge`."""
    size = files.images.get("size") or {"longest_edge": 1024}
    longest = size.get("longest_edge")
    if not isinstance(longest, int):
        raise files.refuse(f"size of its image processor is {size!r}, without a longest_edge")
    files.refuse_crops()
    return ImageSpec(
        resize="dynamic",
        patch=files.processor.get("patch_size", patch),
        merge=files.processor.get("spatial_merge_size", merge),
        longest=longest,
        **pixel_options(files, "clip"),
    )
