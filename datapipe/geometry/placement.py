"""The position of points of an original image after it was fitted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
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
