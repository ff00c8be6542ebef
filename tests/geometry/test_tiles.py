"""InternVL's grids of tiles, against the published function."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

from datapipe.errors import PlanError
from datapipe.geometry.tiles import per_tile, tile_grid

from .sides import SIZES, columns


@settings(deadline=None)
@given(sizes=SIZES, tile=st.sampled_from([448, 384]), most=st.sampled_from([1, 6, 12]))
def test_tile_grids_are_those_of_internvl(
    sizes: list[tuple[int, int]], tile: int, most: int
) -> None:
    across, down = tile_grid(*columns(sizes), tile=tile, max_tiles=most)
    assert list(zip(across.tolist(), down.tolist(), strict=True)) == [
        get_optimal_tiled_canvas((h, w), (tile, tile), 1, most) for w, h in sizes
    ]


def test_tiles_have_a_thumbnail_beside_them_if_there_are_several() -> None:
    widths, heights = np.array([448, 896, 4480]), np.array([448, 448, 448])
    assert per_tile(widths, heights, tokens=1).tolist() == [1, 3, 11]
    assert per_tile(widths, heights).tolist() == [256, 3 * 256, 11 * 256]
    assert per_tile(widths, heights, thumbnail=False, tokens=64).tolist() == [64, 128, 640]


def test_no_tiles_are_refused() -> None:
    with pytest.raises(PlanError, match="at least 1"):
        per_tile(np.array([5]), np.array([5]), max_tiles=0)
    with pytest.raises(PlanError, match="5 x 0 pixels"):
        tile_grid(np.array([5]), np.array([0]))
