"""Sizes, tiles and tokens of images, against the functions of transformers; and random parts."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers.image_processing_utils import select_best_resolution
from transformers.image_transforms import get_resize_output_image_size
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.models.paddleocr_vl import image_processing_pil_paddleocr_vl as paddleocr
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from datapipe.decode.presets import PRESETS
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import make_transform
from datapipe.errors import PlanError
from datapipe.geometry.crop import Draw, least_box, random_box
from datapipe.geometry.sizes import LONGEST, contain, cover, native, native_size, one, shortest
from datapipe.geometry.tiles import (
    anyres_tokens,
    best_grid,
    fit_tiles,
    per_tile,
    scale_grid,
    tile_grid,
)

from ..models.video_processors import (
    Lfm2VlImageProcessor,
    cohere2_canvas,
    llama4_sizes,
    qwen3_vl_resize,
)

PUBLISHED = PRESETS["llava-next"]["grids"]
TALL = ((336, 336), (1008, 672), (336, 1344))  # two of them often tie

SIDES = st.integers(1, 100) | st.integers(1, 5000) | st.integers(1, 300).map(lambda n: n * 14)
SIZES = st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=20)


def columns(sizes):
    """Widths and heights of a list of (width, height)."""
    return np.array(sizes, np.int64).T


def pairs(found):
    first, second = found
    return list(zip(first.tolist(), second.tolist(), strict=True))


@given(
    sizes=SIZES,
    factor=st.sampled_from([28, 32]),
    limits=st.sampled_from([(56 * 56, 28 * 28 * 1280), (4 * 784, 256 * 784), (65536, 16777216)]),
)
def test_native_sizes_are_those_of_qwen2_vl(sizes, factor, limits):
    sizes = [(w, h) for w, h in sizes if max(w, h) / min(w, h) <= 200]
    assume(sizes)
    least, most = limits
    widths, heights = native_size(
        *columns(sizes), multiple_of=factor, min_pixels=least, max_pixels=most
    )
    assert pairs((heights, widths)) == [smart_resize(h, w, factor, *limits) for w, h in sizes]


@given(
    sizes=SIZES,
    frames=st.integers(2, 800),
    limits=st.sampled_from([(4096, 25165824), (128 * 1024, 768 * 1024), (12544, 47040000)]),
)
def test_sizes_of_all_frames_together_are_those_of_qwen3_vl(sizes, frames, limits):
    sizes = [(w, h) for w, h in sizes if max(w, h) / min(w, h) <= 200]
    assume(sizes)
    options = {"multiple_of": 32, "least_side": 32, "frames": frames, "temporal": 2}
    options |= zip(("min_pixels", "max_pixels"), limits, strict=True)
    widths, heights = native_size(*columns(sizes), **options)
    expected = [qwen3_vl_resize(frames, h, w, 2, 32, *limits) for w, h in sizes]
    assert pairs((heights, widths)) == expected


def test_a_long_image_is_never_resized_to_nothing():
    limits = {"min_pixels": 4 * 784, "max_pixels": 256 * 784}
    (width,), (height,) = native_size(np.array([11900]), np.array([60]), multiple_of=32, **limits)
    assert (height, width) == smart_resize(60, 11900, 32, **limits) == (32, 6304)
    # smart_resize refuses an aspect ratio over 200.
    assert native(np.array([1, 50_000]), np.array([50_000, 3])).min() > 0


def test_native_tokens_are_patches_merged_two_by_two():
    widths, heights = np.array([280, 1000, 1]), np.array([560, 1000, 1])
    assert native(widths, heights).tolist() == [10 * 20, 35 * 35, 4]


@given(sizes=SIZES, side=st.integers(1, 1000))
def test_the_shorter_side_becomes_what_transformers_makes_of_it(sizes, side):
    sizes = [(w, h) for w, h in sizes if max(w, h) <= LONGEST * min(w, h)]
    assume(sizes)
    widths, heights = shortest(*columns(sizes), side=side)
    options = {"default_to_square": False, "input_data_format": "channels_first"}
    assert pairs((heights, widths)) == [
        get_resize_output_image_size(np.empty((1, h, w)), side, **options) for w, h in sizes
    ]


def test_a_line_does_not_become_a_mountain():
    assert pairs(shortest(*one(20_000, 1), side=336)) == [(LONGEST * 336, 336)]
    assert pairs(shortest(*one(3, 60_000), side=336)) == [(336, LONGEST * 336)]


@given(width=SIDES, height=SIDES, box=st.tuples(SIDES, SIDES))
def test_what_covers_is_the_smallest_and_what_is_contained_the_largest(width, height, box):
    scales = box[0] / height, box[1] / width
    new_height, new_width = cover(width, height, inner=box)
    assert new_height >= box[0]
    assert new_width >= box[1]
    assert new_height == box[0] or new_width == box[1]
    # The other side is rounded down, so its relation to the original's is off by less than a pixel.
    assert abs(new_height - height * max(scales)) < 1 + 1e-9
    assert abs(new_width - width * max(scales)) < 1 + 1e-9
    new_height, new_width = contain(width, height, outer=box)
    assert 1 <= new_height <= box[0]
    assert 1 <= new_width <= box[1]
    assert new_height == box[0] or new_width == box[1]
    assert abs(new_height - max(1, height * min(scales))) <= 0.5 + 1e-9
    assert abs(new_width - max(1, width * min(scales))) <= 0.5 + 1e-9


@pytest.mark.parametrize(
    ("rule", "canvas"),
    [(tile_grid, get_optimal_tiled_canvas), (scale_grid, cohere2_canvas)],
    ids=["InternVL", "Command A Vision"],
)
@given(sizes=SIZES, tile=st.sampled_from([448, 384]), most=st.sampled_from([1, 6, 12]))
def test_tile_grids_are_those_of(rule, canvas, sizes, tile, most):
    assert pairs(rule(*columns(sizes), tile=tile, max_tiles=most)) == [
        canvas((h, w), (tile, tile), 1, most) for w, h in sizes
    ]


@given(sizes=SIZES)
def test_native_sizes_with_whole_pixels_are_those_of_paddleocr_vl(sizes):
    sizes = [(w, h) for w, h in sizes if max(w, h) / min(w, h) <= 200]
    assume(sizes)
    limits = {"min_pixels": 147_384, "max_pixels": 2_822_400}
    options = {"multiple_of": 28, "least_side": 28, "whole_pixels": True}
    across, down = native_size(*columns(sizes), **options, **limits)
    assert pairs((down, across)) == [paddleocr.smart_resize(h, w, **limits) for w, h in sizes]


@given(sizes=SIZES, most=st.sampled_from([1, 3, 10]))
def test_tiles_and_tokens_are_those_of_lfm2_vl(sizes, most):
    sizes = [(w, h) for w, h in sizes if max(w, h) / min(w, h) <= 256]
    assume(sizes)
    theirs, limits = Lfm2VlImageProcessor(), {"min_pixels": 256**2, "max_pixels": 512**2}
    spec = ImageSpec(resize="naflex", size=512, patch=16, merge=2, tiles=most, **limits)
    for (w, h), found in zip(sizes, make_transform(spec).cells(*columns(sizes)), strict=True):
        large = most > 1 and theirs._is_image_too_large(h, w, 256, 16, 2, 2.0)
        across, down = theirs._get_grid_layout(h, w, 2, most, 512)[:2] if large else (1, 1)
        wide, high = theirs.smart_resize(h, w, 2, 64, 256, 16)
        assert found.tolist() == [down, across, (wide // 32) * (high // 32)]


@given(sizes=SIZES, tile=st.sampled_from([336, 28]), most=st.sampled_from([1, 5, 16]))
def test_images_are_fitted_into_tiles_as_by_llama4(sizes, tile, most):
    across, down = scale_grid(*columns(sizes), tile=tile, max_tiles=most, single=True)
    found = []
    for (width, height), canvas in zip(sizes, pairs((down * tile, across * tile)), strict=True):
        found.append((canvas, fit_tiles(width, height, canvas=canvas, tile=tile)))
    assert found == [llama4_sizes(height, width, tile, most) for width, height in sizes]


def test_tiles_have_a_thumbnail_beside_them_if_there_are_several():
    widths, heights = np.array([448, 896, 4480]), np.array([448, 448, 448])
    assert per_tile(widths, heights).tolist() == [256, 3 * 256, 11 * 256]


@given(sizes=SIZES, grids=st.sampled_from([PUBLISHED, TALL]))
def test_canvases_and_tokens_are_those_of_llava_next(sizes, grids):
    across, down = best_grid(*columns(sizes), grids=grids)
    assert pairs((down, across)) == [select_best_resolution((h, w), list(grids)) for w, h in sizes]
    processor = SimpleNamespace(
        image_processor=SimpleNamespace(image_grid_pinpoints=list(grids)),
        patch_size=14,
        num_additional_image_tokens=0,
        _get_unpadded_features=lambda *sides: LlavaNextProcessor._get_unpadded_features(
            None, *sides
        ),
    )
    tokens = anyres_tokens(*columns(sizes), grids=grids, tile=336, patch=14)
    counted = LlavaNextProcessor._get_number_of_features
    assert tokens.tolist() == [counted(processor, h, w, 336, 336) for w, h in sizes]


@given(
    sizes=SIZES,
    sides=st.sampled_from([3, 6]),
    most=st.sampled_from([1, 4, 9]),
    tile=st.sampled_from([28, 384]),
)
def test_features_of_large_canvases_are_scaled_as_by_llava_onevision(sizes, sides, most, tile):
    numbers = range(1, sides + 1)
    grids = tuple((down * tile, across * tile) for down in numbers for across in numbers)
    processor = SimpleNamespace(
        image_processor=SimpleNamespace(image_grid_pinpoints=list(grids)),
        num_image_tokens=(tile // 14) ** 2,
        vision_aspect_ratio=f"anyres_max_{most}",
    )
    processor._get_unpadded_features = lambda *given: (
        LlavaOnevisionProcessor._get_unpadded_features(processor, *given)
    )
    tokens = anyres_tokens(*columns(sizes), grids=grids, tile=tile, patch=14, most=most)
    counted = LlavaOnevisionProcessor._get_number_of_features
    assert tokens.tolist() == [counted(processor, h, w, tile, tile) for w, h in sizes]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: native(np.array([5, 0]), np.array([5, 5])), r"0 x 5 pixels \(number 1 of 2\)"),
        (lambda: shortest(*one(0, 5), side=3), "0 x 5 pixels"),
        (lambda: per_tile(*one(5, 0)), "5 x 0 pixels"),
    ],
)
def test_sizes_and_limits_of_nothing_are_refused(call, message):
    with pytest.raises(PlanError, match=message):
        call()


# Random parts of images.

AREAS = st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(lambda pair: tuple(sorted(pair)))


@given(width=SIDES, height=SIDES, areas=AREAS, key=st.integers(0, 2**64 - 1))
def test_a_part_lies_inside_and_is_large_enough(width, height, areas, key):
    box = random_box(width, height, areas, Draw(key))
    assert 0 <= box.left <= box.left + box.width <= width
    assert 0 <= box.top <= box.top + box.height <= height
    least_height, least_width = least_box(width, height, areas[0])
    assert box.height >= max(1, math.floor(least_height))
    assert box.width >= max(1, math.floor(least_width))


def test_areas_shapes_and_places_are_spread_over_their_ranges():
    boxes = [random_box(1200, 1000, (0.1, 0.5), Draw(key)) for key in range(3000)]
    areas = np.array([box.width * box.height for box in boxes]) / 1_200_000
    shapes = np.log([box.width / box.height for box in boxes])
    places = np.array([box.left / (1200 - box.width) for box in boxes])
    assert areas.min() >= 0.0995
    assert areas.max() <= 0.5005
    assert areas.mean() == pytest.approx(0.3, abs=0.01)
    assert np.abs(shapes).max() <= math.log(4 / 3) + 0.01
    assert shapes.mean() == pytest.approx(0, abs=0.02)
    assert shapes.std() == pytest.approx(2 * math.log(4 / 3) / math.sqrt(12), rel=0.05)
    assert places.mean() == pytest.approx(0.5, abs=0.03)
    assert places.min() < 0.01
    assert places.max() > 0.99


def test_an_image_too_long_for_any_part_shows_its_middle():
    for key in range(20):
        box = random_box(1000, 30, (0.9, 1.0), Draw(key))
        assert (box.left, box.top, box.width, box.height) == (480, 0, 40, 30)
        box = random_box(30, 1000, (0.9, 1.0), Draw(key))
        assert (box.left, box.top, box.width, box.height) == (0, 480, 30, 40)


def test_the_part_of_a_key_never_changes_between_releases():
    # Whatever the machine: with other numbers, resumed runs would see other images.
    box = random_box(640, 480, (0.1, 1.0), Draw(7))
    assert (box.left, box.top, box.width, box.height) == (26, 119, 281, 258)


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_images_are_mirrored_as_often_as_asked_whatever_part_they_show(probability):
    draws = [Draw(key) for key in range(4000)]
    mirrored = [draw.mirrors(probability) for draw in draws]
    most = 0.03 if 0 < probability < 1 else 0
    assert np.mean(mirrored) == pytest.approx(probability, abs=most)
    if most:
        left = [random_box(400, 400, (0.2, 0.3), draw).left for draw in draws]
        assert abs(np.corrcoef(left, mirrored)[0, 1]) < 0.06
