"""Frames of videos against the video processors of transformers, on the same photographs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from datapipe.decode.forms.frame import FrameTransform
from datapipe.decode.spec import ImageSpec
from datapipe.decode.video_spec import VideoSpec
from datapipe.geometry.sizes import native_size

from ..geometry.sides import SIZES, columns
from ..models.video_processors import (
    Qwen2VLVideoProcessor,
    Qwen3VLVideoProcessor,
    qwen3_vl_resize,
    with_pillow,
)
from .fitted import decoded, photo, size_of

SPECS = {
    "qwen2-vl": ImageSpec.preset(
        "qwen2-vl", video=VideoSpec(min_pixels=128 * 784, max_pixels=768 * 784)
    ),
    "qwen3-vl": ImageSpec(
        resize="native",
        patch=16,
        merge=2,
        temporal=2,
        interpolation="bicubic",
        normalize=((0.5,) * 3, (0.5,) * 3),
        video=VideoSpec(min_pixels=4096, max_pixels=2**19, limits="video"),
    ),
}


def processor(name: str) -> Any:
    spec = SPECS[name]
    kind = Qwen2VLVideoProcessor if name == "qwen2-vl" else Qwen3VLVideoProcessor
    limits = {"shortest_edge": spec.video.min_pixels, "longest_edge": spec.video.max_pixels}
    return kind(size=limits, cap_pixels_per_frame=False)


pytestmark = pytest.mark.usefixtures("rows_first")


def frames_of(count: int, size: tuple[int, int]) -> list[Image.Image]:
    """Frames of a camera that moves over a photograph."""
    source = photo("coffee.png")
    return [
        source.crop((3 * n, 2 * n, 3 * n + size[0], 2 * n + size[1])).resize(size)
        for n in range(count)
    ]


def placed(spec: ImageSpec, frames: list[Image.Image]) -> tuple[Tensor, list[list[int]]]:
    transform, sizes = FrameTransform(spec, len(frames)), size_of(decoded(frames[0]))
    rows = int(transform.rows(*sizes)[0])
    values = 3 * spec.temporal * spec.patch_side**2
    out = torch.full((-(-len(frames) // spec.temporal) * rows, values), torch.nan)
    for number, frame in enumerate(frames):
        patch = number // spec.temporal
        own = out[patch * rows : (patch + 1) * rows]
        transform.place(decoded(frame), transform.part(own.numpy(), number))
    return out, transform.facts(*sizes)["video_grid_thw"].tolist()


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("size", [(320, 180), (90, 200), (23, 17)], ids=str)
def test_patches_are_those_of_the_video_processor(name, count, size):
    spec, frames = SPECS[name], frames_of(count, size)
    with with_pillow():
        expected = processor(name)(
            np.stack([np.asarray(frame) for frame in frames]),
            do_sample_frames=False,
            return_tensors="pt",
        )
    ours, grids = placed(spec, frames)
    assert grids == expected["video_grid_thw"].tolist()
    assert ours.shape == expected["pixel_values_videos"].shape
    std = torch.tensor((spec.mean_std or ())[1]).view(3, 1)
    off = (ours - expected["pixel_values_videos"]).view(len(ours), 3, -1).abs() * std * 255
    assert off.max() < 2.01
    assert (off > 1.01).sum() <= max(8, 5e-5 * off.numel())


@pytest.mark.parametrize("name", SPECS)
def test_frames_from_a_cache_are_written_as_decoded_ones(name):
    spec, frames = SPECS[name], frames_of(3, (64, 48))
    expected, _ = placed(spec, frames)
    plain = FrameTransform(replace(spec, normalize=None), 3)
    transform = FrameTransform(spec, 3)
    out = torch.full_like(expected, torch.nan)
    rows = len(out) // 2
    for number, frame in enumerate(frames):
        values = np.empty(plain.own_shape(*frames[0].size), np.uint8)
        plain.place(decoded(frame), values.reshape(rows, 3, 1, -1))
        own = out[number // 2 * rows :][:rows]
        transform.finish(values, transform.part(own.numpy(), number))
    assert torch.equal(out, expected)


@settings(deadline=None)
@given(
    sizes=SIZES,
    frames=st.integers(2, 800),
    limits=st.sampled_from([(4096, 25165824), (128 * 1024, 768 * 1024), (12544, 47040000)]),
)
def test_sizes_of_all_frames_together_are_those_of_qwen3_vl(sizes, frames, limits):
    least, most = limits
    expected = []
    for width, height in sizes:
        try:
            made = qwen3_vl_resize(frames, height, width, 2, 32, least, most)
        except ValueError:  # an aspect ratio over 200
            made = None
        expected.append(made)
    widths, heights = native_size(
        *columns(sizes),
        multiple_of=32,
        min_pixels=least,
        max_pixels=most,
        least_side=32,
        frames=frames,
        temporal=2,
    )
    found = zip(heights.tolist(), widths.tolist(), strict=True)
    assert all(one in (ours, None) for ours, one in zip(found, expected, strict=True))
