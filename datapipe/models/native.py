"""Qwen2-VL and the models after it, GLM-4.1V to 4.6V, PaddleOCR-VL: native sizes in patches.

`Qwen2VLImageProcessor` of transformers, whose `shortest_edge` and `longest_edge` are numbers of
pixels. An image is a run of `<|image_pad|>`, one for each square of `merge_size` patches.

A patch of a video is two frames. Qwen2-VL and Qwen2.5-VL limit the pixels of each frame, and a
video is one run of `<|video_pad|>`; positions of Qwen2.5-VL follow its times. Qwen3-VL limits the
pixels of all frames together, and each patch is a run of its own behind its time in seconds.

`Glm4vProcessor` and `Glm46VProcessor`, with their image processors. The limits of an image are
those of Qwen2-VL, but count its pixels in each frame of a patch. An image is a run of `<|image|>`
between `<|begin_of_image|>` and `<|end_of_image|>`.

`PaddleOCRVLProcessor` has the limits of Qwen2-VL and its own order of patches. An image is a run of
`<|IMAGE_PLACEHOLDER|>`.

`VideoLlama3Processor` has the limits of Qwen2-VL, and its model is told by how many patches a token
is merged. An image is a run of `<|image_pad|>` with nothing around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from datapipe.decode.spec import ImageSpec, VideoSpec
from datapipe.geometry.sizes import NATIVE_MAX_PIXELS, NATIVE_MIN_PIXELS
from datapipe.models.files import ModelFiles, pixel_options
from datapipe.text.markup import ImageMarkup, VideoMarkup
from datapipe.text.spec import TextSpec

_TIMED = "<{seconds:.1f} seconds><|vision_start|><|video_pad|><|vision_end|>"
_FRAME = 128 * 28 * 28, 768 * 28 * 28  # pixels of a frame of Qwen2-VL and Qwen2.5-VL
_GLM_LIMITS = {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15000}
# Of both kinds of processors, where their files leave them out.
_USUAL = dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), True) | {
    "rescale_factor": 1 / 255
}
_TOKENS_PER_SECOND = 2  # of published checkpoints of Qwen2.5-VL, where only a processor is given


def qwen2_vl(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    return _qwen_vl(files, VideoSpec(**_limits(files.videos, *_FRAME)), VideoMarkup())


def qwen2_5_vl(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    default = 4 if files.vision else _TOKENS_PER_SECOND  # of its config in transformers
    rate = files.vision.get("tokens_per_second", default)
    video = VideoSpec(**_limits(files.videos, *_FRAME), tokens_per_second=rate)
    return _qwen_vl(files, video, VideoMarkup())


def qwen3_vl(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    # Its video processor does not know `min_pixels` and `max_pixels`.
    limits = _limits({"size": files.videos.get("size")}, 128 * 32 * 32, 768 * 32 * 32)
    video = VideoSpec(**limits, limits="video")
    image, text = _qwen_vl(files, video, VideoMarkup(patch=_TIMED))
    return image, replace(text, seq_idx=files.model_type in ("qwen3_5", "qwen3_5_moe"))


def _qwen_vl(
    files: ModelFiles, video: VideoSpec, markup: VideoMarkup
) -> tuple[ImageSpec, TextSpec]:
    limits = _limits(files.images, NATIVE_MIN_PIXELS, NATIVE_MAX_PIXELS)
    image = _native(files, video=video, **limits)
    _check_alike(files, image)
    return image, files.text(image_token="<|image_pad|>", video_markup=markup)


def glm4v(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    size = files.images.get("size") or _GLM_LIMITS
    frames = files.images.get("temporal_patch_size", 2)
    limits = [size.get(name) for name in _GLM_LIMITS]
    if not all(isinstance(limit, int) and limit % frames == 0 for limit in limits):
        raise files.refuse(
            f"size of its image processor is {size!r}, without a shortest_edge and a longest_edge "
            f"that are multiples of {frames} frames"
        )
    image = _native(files, min_pixels=limits[0] // frames, max_pixels=limits[1] // frames)
    image = replace(image, least_side=image.patch_side * image.merge)
    return image, files.text(image_token="<|image|>")


def paddleocr_vl(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    limits = _limits(files.images, 384 * 384, 1536 * 1536)
    image = _native(files, temporal=1, patch_order="rows", **limits)
    image = replace(image, least_side=image.patch_side * image.merge)
    return image, files.text(image_token=files.image_token or "<|IMAGE_PLACEHOLDER|>")


def video_llama_3(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    limits = _limits(files.images, NATIVE_MIN_PIXELS, NATIVE_MAX_PIXELS)
    image = _native(files, temporal=1, merge=1, normalize="siglip", mrope=False, **limits)
    nothing = ImageMarkup()  # Without one, Qwen's tokens would stand around those of an image.
    token = files.image_token or "<|image_pad|>"
    return replace(image, merge_sizes=True), files.text(image_token=token, image_markup=nothing)


def _native(
    files: ModelFiles,
    *,
    temporal: int = 2,
    merge: int = 2,
    normalize: str = "clip",
    mrope: bool = True,
    **options: Any,
) -> ImageSpec:
    images = files.images
    return ImageSpec(
        resize="native",
        patch=images.get("patch_size", 14),
        merge=images.get("merge_size", merge),
        temporal=images.get("temporal_patch_size", temporal),
        mrope=mrope,
        **options,
        **pixel_options(files, normalize),
    )


def _limits(options: Mapping[str, Any], least: int, most: int) -> dict[str, Any]:
    """Return the limits of pixels in a processor's options, whose own defaults are those given."""
    size = options.get("size") or {}
    return {
        "min_pixels": options.get("min_pixels") or size.get("shortest_edge") or least,
        "max_pixels": options.get("max_pixels") or size.get("longest_edge") or most,
    }


def _check_alike(files: ModelFiles, image: ImageSpec) -> None:
    """Refuse a video processor that treats frames otherwise than the image processor images."""
    videos: Mapping[str, Any] = files.videos
    if videos.get("cap_pixels_per_frame"):
        raise files.refuse("its video processor has cap_pixels_per_frame=true")
    sides = {"patch_size": image.patch, "merge_size": image.merge}
    sides["temporal_patch_size"] = image.temporal
    for name, side in sides.items():
        if (found := videos.get(name, side)) != side:
            raise files.refuse(f"{name} is {found} for videos and {side} for images")
    for name in ("image_mean", "image_std", "resample", *_USUAL):
        given = [each.get(name, _USUAL.get(name)) for each in (videos, files.images)]
        if None not in given and given[0] != given[1]:
            raise files.refuse(f"{name} is {given[0]} for videos and {given[1]} for images")
