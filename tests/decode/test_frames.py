"""Frames of videos, of which two share the rows of a patch (their pixels: `tests/models`)."""

from dataclasses import replace

import numpy as np
import torch

from datapipe.decode.forms.frame import FrameTransform
from datapipe.decode.spec import ImageSpec
from datapipe.decode.video_spec import VideoSpec

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
