"""Images cut into square tiles: InternVL's grids."""

from __future__ import annotations

import numpy as np

from datapipe.array_types import Int64, Integers
from datapipe.errors import PlanError
from datapipe.geometry.sizes import check_sizes


def tile_grid(
    widths: Integers, heights: Integers, *, tile: int = 448, max_tiles: int = 12
) -> tuple[Int64, Int64]:
    """Return the tiles along width and height of each image: int64 [n] each.

    The grid whose aspect ratio is closest to the image's; of several equally close ones the largest
    that the image covers by more than half. This is `dynamic_preprocess` of InternVL 1.5 and later.
    Raises `PlanError` if a size is not above 0, or `tile` or `max_tiles` is below 1.
    """
    check_sizes(widths, heights)
    if tile < 1 or max_tiles < 1:
        raise PlanError(f"tile {tile} and max_tiles {max_tiles}: both have to be at least 1")
    ratio = widths / heights
    area = widths.astype(np.int64) * heights
    closest = np.full(len(widths), np.inf)
    across = np.ones(len(widths), np.int64)
    down = np.ones(len(widths), np.int64)
    for columns, rows in _grids(max_tiles):
        distance = np.abs(ratio - columns / rows)
        better = distance < closest
        better |= (distance == closest) & (area > 0.5 * tile * tile * columns * rows)
        closest[better] = distance[better]
        across[better] = columns
        down[better] = rows
    return across, down


def per_tile(
    widths: Integers,
    heights: Integers,
    *,
    tile: int = 448,
    tokens: int = 256,
    max_tiles: int = 12,
    thumbnail: bool = True,
) -> Int64:
    """Return the tokens of images cut into square tiles, as in InternVL: int64 [n].

    `tokens` are those of a tile. With `thumbnail`, an image of several tiles has one more that
    shows the whole of it, and that `max_tiles` does not count.
    """
    across, down = tile_grid(widths, heights, tile=tile, max_tiles=max_tiles)
    tiles = across * down
    return (tiles + (tiles > 1) if thumbnail else tiles) * tokens


def _grids(max_tiles: int) -> list[tuple[int, int]]:
    """Return grids of up to `max_tiles` tiles, those of fewer tiles first."""
    sides = range(1, max_tiles + 1)
    grids = [(columns, rows) for columns in sides for rows in sides if columns * rows <= max_tiles]
    return sorted(grids, key=lambda grid: grid[0] * grid[1])
