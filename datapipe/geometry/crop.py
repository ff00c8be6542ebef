"""Crops, by the size of an image and the key of a random draw, and where points of it then are."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from datapipe.geometry.sizes import LONGEST

_TRIES = 10
_RATIOS = (3 / 4, 4 / 3)


@dataclass(frozen=True, slots=True)
class Draw:
    """Random numbers of one image; equal keys draw equal numbers on every machine."""

    key: int  # 64 bits that depend on seed, epoch, sample and image

    def numbers(self) -> Iterator[float]:
        """Yield numbers uniform over [0, 1), without end; the first one decides about mirroring."""
        # Python promises that `random()` keeps giving the same numbers for a seed.
        generator = random.Random(self.key)
        while True:
            yield generator.random()

    def mirrors(self, probability: float) -> bool:
        """Return whether the image is mirrored."""
        return probability > 0 and next(self.numbers()) < probability


@dataclass(frozen=True, slots=True)
class Box:
    """A part of an image, in whole pixels from its upper left corner."""

    left: int
    top: int
    width: int
    height: int


class Placement(NamedTuple):
    """A point (x, y) of the original is at (x * scale_x + left, y * scale_y + top).

    Coordinates are continuous: (0, 0) is the outer corner of the first pixel, (width, height) that
    of the last one. Boxes and points of annotations are moved by it. A mirrored image has a
    negative `scale_x`.
    """

    scale_x: float
    scale_y: float
    left: float = 0.0
    top: float = 0.0

    def move(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of the point (x, y) of the original."""
        return x * self.scale_x + self.left, y * self.scale_y + self.top

    def shifted(self, left: float, top: float) -> Placement:
        """Return the placement after the fitted image was moved to the right and down."""
        return Placement(self.scale_x, self.scale_y, self.left + left, self.top + top)

    def mirrored(self, width: int) -> Placement:
        """Return the placement in the mirror image of a fitted image `width` pixels wide."""
        return Placement(-self.scale_x, self.scale_y, width - self.left, self.top)


def random_box(width: int, height: int, areas: tuple[float, float], draw: Draw) -> Box:
    """Return a part of an image of a random area, aspect ratio and position.

    The area is a fraction within `areas`, the ratio of width to height is between 3/4 and 4/3, its
    logarithm uniform. Ten tries are made to find one that fits into the image; then the largest
    part in its middle whose ratio is in range is taken. This is the crop of Inception (Szegedy et
    al., "Going deeper with convolutions", 2015) as torchvision's `RandomResizedCrop.get_params`
    draws it.
    """
    numbers = draw.numbers()
    next(numbers)
    low, high = (math.log(ratio) for ratio in _RATIOS)
    for _ in range(_TRIES):
        area = width * height * (areas[0] + (areas[1] - areas[0]) * next(numbers))
        aspect = math.exp(low + (high - low) * next(numbers))
        across, down = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < across <= width and 0 < down <= height:
            left = int(next(numbers) * (width - across + 1))
            top = int(next(numbers) * (height - down + 1))
            return Box(left, top, across, down)
    return _middle(width, height)


def least_box(width: int, height: int, least_area: float) -> tuple[float, float]:
    """Return the (height, width) that every `random_box` has at least, but for a rounding."""
    area = width * height * least_area
    middle = _middle(width, height)
    return (
        min(math.sqrt(area / _RATIOS[1]), middle.height),
        min(math.sqrt(area * _RATIOS[0]), middle.width),
    )


def middle_box(width: int, height: int, *, inner: tuple[int, int]) -> Box:
    """Return the part of an image to cover (height, width) `inner`: all, or the middle of a line.

    Covering 336x336 with 20,000x1 pixels would need gigabytes on the way, for a result that shows
    one of these pixels.
    """
    inner_height, inner_width = inner
    longest_width = max(1, LONGEST * height * inner_width // inner_height)
    longest_height = max(1, LONGEST * width * inner_height // inner_width)
    top = max(0, (height - longest_height) // 2)
    left = max(0, (width - longest_width) // 2)
    return Box(left, top, min(width, longest_width), min(height, longest_height))


def _middle(width: int, height: int) -> Box:
    low, high = _RATIOS
    wide, tall = width, height
    if width < low * height:
        tall = max(1, round(width / low))
    elif width > high * height:
        wide = max(1, round(height * high))
    return Box((width - wide) // 2, (height - tall) // 2, wide, tall)
