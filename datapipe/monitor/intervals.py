"""Intervals of time: their union, and what is left of some without others."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]
"""Start and end, in nanoseconds."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return disjoint intervals that cover the same time, in ascending order."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif end > start:
            joined.append((start, end))
    return joined


def total(intervals: Iterable[Interval]) -> int:
    """Add up disjoint intervals."""
    return sum(end - start for start, end in intervals)


def without(intervals: Iterable[Interval], others: Iterable[Interval]) -> int:
    """Return how much time is in the first intervals and not in the others."""
    mine, others = union(intervals), union(others)
    return total(union([*mine, *others])) - total(others)
