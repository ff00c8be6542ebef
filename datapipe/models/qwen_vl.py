"""Qwen2-VL and the models after it: native sizes, cut into patches.

`Qwen2VLImageProcessor` of transformers, whose `shortest_edge` and `longest_edge` are numbers of
pixels. An image is a run of `<|image_pad|>`, one for each square of `merge_size` patches.
"""

from __future__ import annotations

from datapipe.decode.spec import ImageSpec
from datapipe.geometry.sizes import NATIVE_MAX_PIXELS, NATIVE_MIN_PIXELS
from datapipe.models.files import ModelFiles, pixel_options
from datapipe.text.spec import TextSpec


def qwen_vl(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    images = files.images
    size = images.get("size") or {}
    least = images.get("min_pixels") or size.get("shortest_edge") or NATIVE_MIN_PIXELS
    most = images.get("max_pixels") or size.get("longest_edge") or NATIVE_MAX_PIXELS
    image = ImageSpec(
        resize="native",
        patch=images.get("patch_size", 14),
        merge=images.get("merge_size", 2),
        temporal=images.get("temporal_patch_size", 2),
        mrope=True,
        min_pixels=least,
        max_pixels=most,
        **pixel_options(files, "clip"),
    )
    return image, files.text(image_token="<|image_pad|>")
