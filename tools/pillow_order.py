"""Difference between Pillow 13 and a resize that begins with the rows, in grey levels.

    python -m tools.pillow_order

Photographs of scikit-image, and black and white noise, are resized to the squares and rectangles of
models, and squeezed to a part of their height, where Pillow 13 begins with the columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from itertools import product

import numpy as np
from PIL import Image

PHOTOS = ("chelsea.png", "rocket.jpg", "coffee.png", "astronaut.png")
SIDES = (224, 336, 384, 448, 672, 1008)
PARTS = (1, 2, 3, 4, 6, 8, 12, 16)
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def main() -> None:
    """Print how many sizes differ, and by how much, of photographs and of noise."""
    images = {"photographs": list(_photographs()), "noise": [_noise()]}
    for (kind, these), (name, resample) in product(images.items(), FILTERS.items()):
        largest = [_difference(image, size, resample) for image in these for size in _sizes(image)]
        print(
            f"{kind}, {name}: {sum(map(bool, largest))} of {len(largest)} sizes differ, by up to "
            f"{max(largest)} grey levels"
        )


def _difference(image: Image.Image, size: tuple[int, int], resample: Image.Resampling) -> int:
    whole = image.resize(size, resample)
    rows = image.resize((size[0], image.height), resample).resize(size, resample)
    return int(np.abs(np.asarray(whole, np.int16) - np.asarray(rows, np.int16)).max())


def _sizes(image: Image.Image) -> Iterator[tuple[int, int]]:
    for width in (*SIDES, image.width):
        yield from ((width, height) for height in SIDES)
        yield from ((width, max(1, image.height // part)) for part in PARTS)


def _photographs() -> Iterator[Image.Image]:
    for name in PHOTOS:
        with (files("skimage") / "data" / name).open("rb") as file:
            yield Image.open(file).convert("RGB")


def _noise() -> Image.Image:
    generator = np.random.default_rng(0)
    return Image.fromarray(generator.integers(2, size=(480, 640, 3), dtype=np.uint8) * 255)


if __name__ == "__main__":
    main()
