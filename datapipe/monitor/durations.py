"""Percentiles and timelines of any number of durations, in constant memory.

The width of buckets grows with the duration, 32 to every doubling, as in Gil Tene's HdrHistogram: a
percentile is at most 1.6 % off, and nothing is allocated while durations are added.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

_LONGEST = (1 << 50) - 1  # ns, 13 days; longer durations count as this
_BUCKETS = 32 * 46
_MOST = 240  # stretches of a timeline


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Durations of one kind, in seconds."""

    count: int = 0
    total: float = 0.0  # sum
    # p50, p90, p99: percentiles, to 1.6 %; 0 of none
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    longest: float = 0.0


class Durations:
    """Histogram of durations of whole nanoseconds. For one thread to write."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.longest = 0
        self._buckets = [0] * _BUCKETS

    def add(self, duration: int) -> None:
        """Count a duration in nanoseconds; a negative one counts as 0."""
        duration = min(max(duration, 0), _LONGEST)
        self.count += 1
        self.total += duration
        if duration > self.longest:
            self.longest = duration
        shift = duration.bit_length() - 6
        # Six bits are kept of each, so the leading one tells neighbouring doublings apart.
        self._buckets[duration if shift <= 0 else (shift << 5) + (duration >> shift)] += 1

    def timing(self) -> Timing:
        return Timing(
            count=self.count,
            total=self.total / 1e9,
            p50=self.quantile(0.5),
            p90=self.quantile(0.9),
            p99=self.quantile(0.99),
            longest=self.longest / 1e9,
        )

    def quantile(self, share: float) -> float:
        """Return the seconds that `share` of the durations do not exceed; 0 of none."""
        if not self.count:
            return 0.0
        index = bisect_left([*accumulate(self._buckets)], share * self.count)
        shift = max((index >> 5) - 1, 0)
        middle = ((index - (shift << 5)) << shift) + (1 << shift) / 2
        return min(middle, self.longest) / 1e9


@dataclass(frozen=True)
class TurnSums:
    """Consecutive turns, and sums of their seconds."""

    first: int  # number of the first turn
    turns: int  # that were timed
    wait: float
    transfer: float
    step: float
    rest: float


class Timeline:
    """At most `most` stretches of equally many turns; neighbours merge when it is full."""

    def __init__(self, most: int = _MOST) -> None:
        assert most % 2 == 0, "stretches merge in pairs"
        self._most = most
        self._span = 1  # turns of a stretch
        self._parts: list[list[int]] = []  # the first turn, their number, and nanoseconds

    def add(self, turn: int, wait: int, transfer: int, step: int, rest: int) -> None:
        """Count a turn, in nanoseconds; `turn` numbers go up."""
        parts = self._parts
        if not parts or parts[-1][1] >= self._span:
            if len(parts) == self._most:
                for stretch, later in zip(parts[::2], parts[1::2], strict=True):
                    _add_to(stretch, later[1:])
                parts = self._parts = parts[::2]
                self._span *= 2
            parts.append([turn, 0, 0, 0, 0, 0])
        _add_to(parts[-1], (1, wait, transfer, step, rest))

    def stretches(self) -> tuple[TurnSums, ...]:
        return tuple(
            TurnSums(first, turns, *(part / 1e9 for part in times))
            for first, turns, *times in self._parts
        )


def _add_to(stretch: list[int], values: Iterable[int]) -> None:
    for at, value in enumerate(values, start=1):
        stretch[at] += value
