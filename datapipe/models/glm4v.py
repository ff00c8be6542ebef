"""GLM-4.1V, GLM-4.5V and GLM-4.6V: native sizes, cut into patches.

`Glm4vProcessor` and `Glm46VProcessor`, with their image processors. The limits of an image are
those of Qwen2-VL, but count its pixels in each frame of a patch. An image is a run of `<|image|>`
between `<|begin_of_image|>` and `<|end_of_image|>`.
"""

from __future__ import annotations

from datapipe.decode.spec import ImageSpec
from datapipe.models.files import ModelFiles, pixel_options
from datapipe.text.spec import TextSpec

_LIMITS = {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15000}


def glm4v(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    images = files.images
    size = images.get("size") or _LIMITS
    frames = images.get("temporal_patch_size", 2)
    patch, merge = images.get("patch_size", 14), images.get("merge_size", 2)
    limits = [size.get(name) for name in _LIMITS]
    if not all(isinstance(limit, int) and limit % frames == 0 for limit in limits):
        raise files.refuse(
            f"size of its image processor is {size!r}, without a shortest_edge and a longest_edge "
            f"that are multiples of {frames} frames"
        )
    image = ImageSpec(
        resize="native",
        patch=patch,
        merge=merge,
        temporal=frames,
        mrope=True,
        min_pixels=limits[0] // frames,
        max_pixels=limits[1] // frames,
        least_side=patch * merge,
        **pixel_options(files, "clip"),
    )
    return image, files.text(image_token="<|image|>")
