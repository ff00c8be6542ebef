"""Resizing on uint8: what Pillow makes of it, whatever the memory of the image looks like."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from datapipe.decode import resize as resizing

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def tensor(pixels):
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1)


def with_pillow(image, height, width, filter):
    pixels = Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))
    # Pillow before 13 and torch begin with the width, Pillow 13 sometimes with the height. Where
    # bicubic weights overshoot black or white in between, that makes a difference.
    wide = pixels.resize((width, pixels.height), FILTERS[filter])
    return tensor(wide.resize((width, height), FILTERS[filter]))


def resize(image, height, width, filter="bilinear"):
    return tensor(resizing.resize(image.permute(1, 2, 0).numpy(), height, width, filter))


def noise(height, width, seed=0):
    generator = np.random.default_rng(seed)
    return tensor(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))


def difference(left, right):
    assert left.shape == right.shape
    return (left.int() - right.int()).abs()


@settings(max_examples=150)
@given(
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.sampled_from(sorted(FILTERS)),
    st.integers(0, 5),
)
def test_any_shape_becomes_any_other_as_in_pillow(old, new, filter, seed):
    image = noise(*old, seed)
    # One pass, the other, and both, of which each may round another way.
    for size, most in (((old[0], new[1]), 1), ((new[0], old[1]), 1), (new, 2)):
        resized = resize(image, *size, filter)
        assert resized.dtype == torch.uint8
        assert difference(resized, with_pillow(image, *size, filter)).max() <= most


def test_an_image_of_the_right_size_is_not_touched():
    pixels = noise(20, 30).permute(1, 2, 0).numpy()
    assert resizing.resize(pixels, 20, 30) is pixels
    assert resize(noise(50, 60), 20, 30).stride() == (1, 90, 3)  # pixels one after another
