"""Sizes that images are resized to, against the published functions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.image_transforms import get_resize_output_image_size
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from datapipe.errors import PlanError
from datapipe.geometry.sizes import LONGEST, contain, cover, native, native_size, one, shortest

from .sides import SIDES, SIZES, columns


@settings(deadline=None)
@given(
    sizes=SIZES,
    factor=st.sampled_from([28, 32]),
    limits=st.sampled_from([(56 * 56, 28 * 28 * 1280), (4 * 784, 256 * 784), (65536, 16777216)]),
)
def test_native_sizes_are_those_of_qwen2_vl(
    sizes: list[tuple[int, int]], factor: int, limits: tuple[int, int]
) -> None:
    sizes = [(w, h) for w, h in sizes if max(w, h) / min(w, h) <= 200]
    if not sizes:
        return
    widths, heights = native_size(
        *columns(sizes), multiple_of=factor, min_pixels=limits[0], max_pixels=limits[1]
    )
    assert list(zip(heights.tolist(), widths.tolist(), strict=True)) == [
        smart_resize(h, w, factor, *limits) for w, h in sizes
    ]


def test_a_long_image_is_never_resized_to_nothing() -> None:
    limits = {"min_pixels": 4 * 784, "max_pixels": 256 * 784}
    (width,), (height,) = native_size(np.array([11900]), np.array([60]), multiple_of=32, **limits)
    assert (height, width) == smart_resize(60, 11900, 32, **limits) == (32, 6304)
    # smart_resize refuses an aspect ratio over 200.
    assert native(np.array([1, 50_000]), np.array([50_000, 3])).min() > 0


def test_native_tokens_are_patches_merged_two_by_two() -> None:
    widths, heights = np.array([280, 1000, 1]), np.array([560, 1000, 1])
    assert native(widths, heights).tolist() == [10 * 20, 35 * 35, 4]
    assert native(widths[:1], heights[:1], patch=28, merge=1).tolist() == [200]


@settings(deadline=None)
@given(sizes=SIZES, side=st.integers(1, 1000))
def test_the_shorter_side_becomes_what_transformers_makes_of_it(
    sizes: list[tuple[int, int]], side: int
) -> None:
    sizes = [(w, h) for w, h in sizes if max(w, h) <= LONGEST * min(w, h)]
    if not sizes:
        return
    widths, heights = shortest(*columns(sizes), side=side)
    assert list(zip(heights.tolist(), widths.tolist(), strict=True)) == [
        get_resize_output_image_size(
            np.empty((1, h, w)), side, default_to_square=False, input_data_format="channels_first"
        )
        for w, h in sizes
    ]


def test_a_line_does_not_become_a_mountain() -> None:
    (width,), (height,) = shortest(*one(20_000, 1), side=336)
    assert (width, height) == (LONGEST * 336, 336)
    (width,), (height,) = shortest(*one(3, 60_000), side=336)
    assert (width, height) == (336, LONGEST * 336)


@given(width=SIDES, height=SIDES, inner=st.tuples(SIDES, SIDES))
def test_what_covers_is_the_smallest_that_does(
    width: int, height: int, inner: tuple[int, int]
) -> None:
    new_height, new_width = cover(width, height, inner=inner)
    assert new_height >= inner[0]
    assert new_width >= inner[1]
    assert new_height == inner[0] or new_width == inner[1]
    # The other side is rounded down, so its relation to the original's is off by less than a pixel.
    scale = max(inner[0] / height, inner[1] / width)
    assert abs(new_height - height * scale) < 1 + 1e-9
    assert abs(new_width - width * scale) < 1 + 1e-9


@given(width=SIDES, height=SIDES, outer=st.tuples(SIDES, SIDES))
def test_what_is_contained_is_the_largest_that_fits(
    width: int, height: int, outer: tuple[int, int]
) -> None:
    new_height, new_width = contain(width, height, outer=outer)
    assert 1 <= new_height <= outer[0]
    assert 1 <= new_width <= outer[1]
    assert new_height == outer[0] or new_width == outer[1]
    scale = min(outer[0] / height, outer[1] / width)
    assert abs(new_height - max(1, height * scale)) <= 0.5 + 1e-9
    assert abs(new_width - max(1, width * scale)) <= 0.5 + 1e-9


def test_a_size_of_nothing_is_refused() -> None:
    with pytest.raises(PlanError, match=r"0 x 5 pixels \(number 1 of 2\)"):
        native(np.array([5, 0]), np.array([5, 5]))
    with pytest.raises(PlanError, match="0 x 5 pixels"):
        shortest(*one(0, 5), side=3)
    with pytest.raises(PlanError, match="at most max_pixels"):
        native_size(*one(5, 5), multiple_of=28, min_pixels=5, max_pixels=4)
