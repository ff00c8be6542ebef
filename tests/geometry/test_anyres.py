"""LLaVA-NeXT's canvases and tokens, against transformers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.image_processing_utils import get_patch_output_size, select_best_resolution
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor

from datapipe.decode.presets import PRESETS
from datapipe.geometry.anyres import Grids, anyres_tiles, anyres_tokens, best_grid, fit_grid

from .sides import SIDES, SIZES, columns

PUBLISHED: Grids = PRESETS["llava-next"]["grids"]
TALL = ((336, 336), (1008, 672), (336, 1344))  # two of them often tie


@settings(deadline=None)
@given(sizes=SIZES, grids=st.sampled_from([PUBLISHED, TALL]))
def test_the_canvas_chosen_is_the_published_one(sizes: list[tuple[int, int]], grids: Grids) -> None:
    across, down = best_grid(*columns(sizes), grids=grids)
    assert list(zip(down.tolist(), across.tolist(), strict=True)) == [
        select_best_resolution((h, w), list(grids)) for w, h in sizes
    ]


@given(width=SIDES, height=SIDES, canvas=st.sampled_from(PUBLISHED))
def test_an_image_fills_its_canvas_as_published(
    width: int, height: int, canvas: tuple[int, int]
) -> None:
    image = np.empty((3, height, width), np.bool_)
    expected = get_patch_output_size(image, canvas, "channels_first")
    assert fit_grid(width, height, canvas=canvas) == expected


@settings(deadline=None)
@given(sizes=SIZES, grids=st.sampled_from([PUBLISHED, TALL]))
def test_tokens_are_those_that_transformers_counts(
    sizes: list[tuple[int, int]], grids: Grids
) -> None:
    processor = SimpleNamespace(
        image_processor=SimpleNamespace(image_grid_pinpoints=list(grids)),
        patch_size=14,
        num_additional_image_tokens=0,
        _get_unpadded_features=lambda *sides: LlavaNextProcessor._get_unpadded_features(
            None,  # type: ignore[arg-type]
            *sides,
        ),
    )
    tokens = anyres_tokens(*columns(sizes), grids=grids, tile=336, patch=14)
    assert tokens.tolist() == [
        LlavaNextProcessor._get_number_of_features(processor, h, w, 336, 336)  # type: ignore[arg-type]
        for w, h in sizes
    ]


def test_the_whole_image_is_a_tile_of_its_own() -> None:
    widths, heights = np.array([672, 100]), np.array([336, 1000])
    tiles = anyres_tiles(widths, heights, grids=PUBLISHED, tile=336)
    assert tiles.tolist() == [1 + 2, 1 + 3]
    # 24 x 24 of the whole, and rows of the canvas that have one token more each.
    tokens = anyres_tokens(widths[:1], heights[:1], grids=PUBLISHED, tile=336, patch=14)
    assert tokens.tolist() == [576 + 24 * 48 + 24]
