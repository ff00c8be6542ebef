from __future__ import annotations

import ast
import importlib.util
import math
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import PlanError
from datapipe.plan.imagetokens import (
    image_token_counter,
    native,
    native_size,
    per_tile,
    tile_grid,
)

SIDES = st.one_of(
    st.integers(1, 100), st.integers(1, 5000), st.integers(1, 300).map(lambda n: n * 14)
)
SIZES = st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=20)


@cache
def published(module: str, name: str) -> Any:
    """A function of a module of transformers that cannot be imported without torchvision."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "models" / f"{module}.py"
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    scope: dict[str, Any] = {"math": math, "lru_cache": lru_cache}
    exec(compile(tree, str(path), "exec"), scope)
    return scope[name]


def columns(sizes: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    array = np.array(sizes, np.int64)
    return array[:, 0], array[:, 1]


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
    smart_resize = published("qwen2_vl/image_processing_qwen2_vl", "smart_resize")
    widths, heights = native_size(
        *columns(sizes), multiple_of=factor, min_pixels=limits[0], max_pixels=limits[1]
    )
    assert list(zip(heights.tolist(), widths.tolist(), strict=True)) == [
        smart_resize(h, w, factor, *limits) for w, h in sizes
    ]


def test_a_long_image_is_never_resized_to_nothing() -> None:
    smart_resize = published("qwen2_vl/image_processing_qwen2_vl", "smart_resize")
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
@given(sizes=SIZES, tile=st.sampled_from([448, 384]), most=st.sampled_from([1, 6, 12]))
def test_tile_grids_are_those_of_internvl(
    sizes: list[tuple[int, int]], tile: int, most: int
) -> None:
    find = published("got_ocr2/image_processing_got_ocr2", "get_optimal_tiled_canvas")
    across, down = tile_grid(*columns(sizes), tile=tile, max_tiles=most)
    expected = [find((h, w), (tile, tile), 1, most) for w, h in sizes]
    assert (across * down).tolist() == [columns * rows for columns, rows in expected]


def test_tiles_have_a_thumbnail_beside_them_if_there_are_several() -> None:
    widths, heights = np.array([448, 896, 4480]), np.array([448, 448, 448])
    assert per_tile(widths, heights).tolist() == [256, 3 * 256, 11 * 256]
    assert per_tile(widths, heights, thumbnail=False, tokens=64).tolist() == [64, 128, 640]


def test_counters_count_as_they_are_told() -> None:
    widths, heights = np.array([280, 896]), np.array([560, 448])
    assert image_token_counter(64)(widths, heights).tolist() == [64, 64]
    assert image_token_counter("native")(widths, heights).tolist() == [200, 512]
    assert image_token_counter("per-tile")(widths, heights).tolist() == [3 * 256, 3 * 256]
    halves = image_token_counter(lambda w, h: w // 2)(widths, heights)
    assert halves.tolist() == [140, 448]
    assert halves.dtype == np.int64


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (lambda w, h: w / 2, "float64"),
        (lambda w, h: 7, r"shape \(\)"),
        (lambda w, h: w[:1], r"shape \(1,\) for 2"),
        (lambda w, h: w - 280, "0 for an image of 280 x 560"),
    ],
)
def test_a_function_that_counts_wrongly_is_told(function: Any, cause: str) -> None:
    with pytest.raises(PlanError, match=cause):
        image_token_counter(function)(np.array([280, 896]), np.array([560, 448]))


def test_a_size_of_nothing_is_refused() -> None:
    with pytest.raises(PlanError, match=r"0 x 5 pixels \(number 1 of 2\)"):
        native(np.array([5, 0]), np.array([5, 5]))
    with pytest.raises(PlanError, match="at least 1"):
        per_tile(np.array([5]), np.array([5]), max_tiles=0)
    with pytest.raises(PlanError, match="none of a number"):
        image_token_counter("tiles")  # type: ignore[arg-type]
