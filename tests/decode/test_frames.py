"""Frames of videos, of which two share the rows of a patch (their pixels: `tests/models`)."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from datapipe.decode.forms.frame import FrameTransform
from datapipe.decode.spec import ImageSpec
from datapipe.decode.video_spec import VideoSpec

from ..models.video_processors import qwen3_vl_resize
from .fitted import decoded, photo, size_of


def test_frames_from_a_cache_are_written_as_decoded_ones():
    spec = ImageSpec.preset("qwen2-vl", video=VideoSpec(min_pixels=128 * 784))
    frames = [
        decoded(photo("coffee.png").crop((left, 0, left + 64, 48))) for left in range(0, 9, 3)
    ]
    transform, plain = FrameTransform(spec, 3), FrameTransform(replace(spec, normalize=None), 3)
    rows = int(transform.rows(*size_of(frames[0]))[0])
    expected, found = torch.full((2, 2, rows, 3 * 2 * spec.patch_side**2), torch.nan)
    for number, frame in enumerate(frames):
        transform.place(frame, transform.part(expected[number // 2].numpy(), number))
        values = np.empty(plain.own_shape(64, 48), np.uint8)
        plain.place(frame, values.reshape(rows, 3, 1, -1))
        transform.finish(values, transform.part(found[number // 2].numpy(), number))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("limits", ["frame", "video"])
@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("size", [(640, 480), (90, 200), (23, 17)], ids=str)
def test_frames_keep_the_limits_of_videos(size, count, limits):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    (width, height), both = size, {"min_pixels": 90_000, "max_pixels": 150_000}
    spec = ImageSpec.preset("qwen2-vl", video=VideoSpec(**both, limits=limits))
    if limits == "frame":
        high, wide = smart_resize(height, width, 28, *both.values())
    else:
        high, wide = qwen3_vl_resize(count, height, width, 2, 28, *both.values())
    grid = FrameTransform(spec, count).facts(np.array([width]), np.array([height]))
    assert grid["video_grid_thw"].tolist() == [[-(-count // 2), high // 14, wide // 14]]
