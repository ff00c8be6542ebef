"""Percentiles and timelines of any number of durations, in constant memory.

The width of buckets grows with the duration, 32 to every doubling, as in Gil Tene's HdrHistogram: a
percentile is at most 1.6 % off.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import add

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
        self.count = self.total = self.longest = 0
        # By the bits that are left out, and the others: six, of which the first is set
        self._buckets: dict[tuple[int, int], int] = {}

    def add(self, duration: int) -> None:
        """Count a duration in nanoseconds; a negative one counts as 0."""
        duration = max(duration, 0)
        self.count += 1
        self.total += duration
        self.longest = max(self.longest, duration)
        left_out = max(duration.bit_length() - 6, 0)
        bucket = left_out, duration >> left_out
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

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
        passed = 0
        for (left_out, kept), count in sorted(self._buckets.copy().items()):  # for any thread
            passed += count
            if passed >= share * self.count:
                return min((kept + 0.5) * (1 << left_out), self.longest) / 1e9
        return self.longest / 1e9


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
                    stretch[1:] = map(add, stretch[1:], later[1:])
                parts = self._parts = parts[::2]
                self._span *= 2
            parts.append([turn, 0, 0, 0, 0, 0])
        parts[-1][1:] = map(add, parts[-1][1:], (1, wait, transfer, step, rest))

    def stretches(self) -> tuple[TurnSums, ...]:
        return tuple(
            TurnSums(first, turns, *(part / 1e9 for part in times))
            for first, turns, *times in self._parts
        )
