"""Where points of an original image lie after it was fitted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """A point (x, y) of the original lies at (x * scale_x + left, y * scale_y + top).

    Coordinates are continuous: (0, 0) is the outer corner of the first pixel, (width, height) that
    of the last one. Boxes and points of annotations are moved by it. A mirrored image has a
    negative `scale_x`.
    """

    scale_x: float
    scale_y: float
    left: float = 0.0
    top: float = 0.0

    def move(self, x: float, y: float) -> tuple[float, float]:
        """Where the point (x, y) of the original lies."""
        return x * self.scale_x + self.left, y * self.scale_y + self.top

    def shifted(self, left: float, top: float) -> Placement:
        """The same after the fitted image was moved to the right and down."""
        return Placement(self.scale_x, self.scale_y, self.left + left, self.top + top)

    def mirrored(self, width: int) -> Placement:
        """The same in the mirror image of a fitted image that is `width` pixels wide."""
        return Placement(-self.scale_x, self.scale_y, width - self.left, self.top)
