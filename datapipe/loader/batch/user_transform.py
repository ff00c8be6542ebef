"""The user's transform of a sample, between decoding and fitting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from datapipe.array_types import UInt8
from datapipe.decode.image import Decoded
from datapipe.errors import SampleError, TransformError
from datapipe.plan.rng import derive
from datapipe.report.table import counted

Sample = dict[str, Any]
UserTransform = Callable[[Sample, np.random.Generator], Sample]
"""Function of a sample (a dict with `images`, uint8 [h, w, 3] each, `text`, `key` and `record`) and
a generator; it returns the sample with other images, or text if there is no tokenizer."""

_PURPOSE = 5  # of derived keys


def apply_transform(
    transform: UserTransform, images: list[Decoded], rest: Sample, drawn_by: tuple[int, int, int]
) -> tuple[list[Decoded], str]:
    """Return the images and the text that the user's function makes of a sample.

    `rest` is the sample without its images. The generator follows from `drawn_by`: seed, epoch and
    number of the sample. So it draws the same on every worker. Raises `TransformError` if the
    function raised, or did not return a sample.
    """
    seed, epoch, number = drawn_by
    generator = np.random.Generator(np.random.Philox(key=derive(seed, epoch, _PURPOSE, number)))
    try:
        made = transform({"images": [image.pixels for image in images], **rest}, generator)
    except SampleError:
        raise
    except Exception as error:
        raise TransformError(f"transform raised {type(error).__name__}: {error}") from error
    if not isinstance(made, dict) or not {"images", "text"} <= made.keys():
        raise TransformError(
            f"transform returned {type(made).__name__}, not the sample as a dict with images and "
            "text"
        )
    pixels = list(made["images"])
    if len(pixels) != len(images):
        raise TransformError(
            f"transform returned {counted(len(pixels), 'image')} of {len(images)}; the plan needs "
            "all of them"
        )
    if not isinstance(made["text"], str):
        raise TransformError(f"transform returned a {type(made['text']).__name__} as text")
    return [
        _changed(image, _checked(new)) for image, new in zip(images, pixels, strict=True)
    ], made["text"]


def _changed(image: Decoded, pixels: UInt8) -> Decoded:
    height, width = pixels.shape[:2]
    if pixels.shape == image.pixels.shape:  # perhaps a part of the image's own size
        return replace(image, pixels=pixels)
    return Decoded(pixels, width, height)


def _checked(pixels: Any) -> UInt8:
    found = type(pixels).__name__
    if isinstance(pixels, np.ndarray):
        if pixels.dtype == np.uint8 and pixels.shape[2:] == (3,) and pixels.size:
            return pixels
        found = f"{pixels.dtype} {list(pixels.shape)}"
    raise TransformError(f"transform returned {found} as an image, not uint8 [h, w, 3]")
