"""Rates over the draws of a run as a line of segments, and their integrals.

Only + - * / of float64, comparisons and exact sums (`math.fsum`) are used, so that every machine
gets the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum

MOST_DRAWS = 2**62
_TOLERANCE = 2.0**-40  # of totals: sums of rates such as 0.1 miss a whole number by less


@dataclass(frozen=True)
class RatePiece:
    """A segment: its first draw, draws (None without end) and rates at its ends."""

    start: int
    draws: int | None
    first: tuple[float, ...]
    last: tuple[float, ...]


@dataclass(frozen=True)
class RateLine:
    """Segments of a run so far; the last has no end."""

    pieces: tuple[RatePiece, ...]

    def change(self, start: int, over: int, rates: tuple[float, ...]) -> RateLine:
        """Return the line with other rates from a draw of the last segment on."""
        *before, open_end = self.pieces
        if start > open_end.start:
            rest = start - open_end.start
            before.append(RatePiece(open_end.start, rest, open_end.first, open_end.last))
        if over:
            before.append(RatePiece(start, over, open_end.last, rates))
        return RateLine((*before, RatePiece(start + over, None, rates, rates)))

    def first_draw(
        self, density: Callable[[Sequence[float]], float], enough: Callable[[float], bool]
    ) -> int | None:
        """Return the fewest draws whose integral of `density` is enough; None if it never is.

        A result above `MOST_DRAWS` is not exact. `density` is linear in the rates and not negative.
        """
        total = 0.0
        for piece in self.pieces:
            begin, end = density(piece.first), density(piece.last)
            if piece.draws is None:
                if not begin and not enough(total):
                    return None
                length = _reachable(total, begin, enough)
                if length > MOST_DRAWS:
                    return piece.start + length
            else:
                length = piece.draws
            slope = (end - begin) / (2 * length)
            if enough(total + length * (begin + slope * length)):
                low, high = -1, length  # enough at high, and not at low
                while high - low > 1:
                    middle = (low + high) // 2
                    if enough(total + middle * (begin + slope * middle)):
                        high = middle
                    else:
                        low = middle
                return piece.start + high
            total += length * (begin + slope * length)
        return None


def _reachable(total: float, density: float, enough: Callable[[float], bool]) -> int:
    """Return a number of draws at a constant density that are enough, or more than may be."""
    draws = 1
    while draws <= MOST_DRAWS and not enough(total + draws * density):
        draws *= 2
    return draws


def mean_tokens(means: Sequence[float]) -> Callable[[Sequence[float]], float]:
    """Return a function of rates: the mean tokens of a draw."""
    return lambda rates: fsum(rate * mean for rate, mean in zip(rates, means, strict=True))


def at_least(total: int) -> Callable[[float], bool]:
    """Return a function that is true from a total on, but for rounding."""
    least = total * (1 - _TOLERANCE)
    return lambda reached: reached >= least


def more_than(total: int) -> Callable[[float], bool]:
    """Return a function that is true above a total, but for rounding."""
    most = total * (1 + _TOLERANCE)
    return lambda reached: reached > most
