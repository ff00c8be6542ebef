"""Ratios between the rungs of a ladder of training."""

from collections.abc import Sequence
from typing import Any

from benchmarks.common import Spread

LAST = 4  # steps whose losses are averaged: that of one step depends on its batch


def ratios(results: Sequence[dict[str, Any]], number: int) -> tuple[Spread | None, Spread]:
    """Tokens a second against the rung before, and against the first, within each round."""

    def against(other: int) -> Spread:
        pairs = zip(results[number]["runs"], results[other]["runs"], strict=True)
        return Spread.of([own["tokens_per_s"] / its["tokens_per_s"] for own, its in pairs])

    before = [i for i in range(number) if not results[i]["aside"]]
    return (against(before[-1]) if before else None), against(0)
