"""Exchange told apart from waiting for a slower rank, from the same steps on all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple


class RankStep(NamedTuple):
    """A step on one rank, in seconds."""

    seconds: float
    waited: float  # for the batch
    exchange: float  # not hidden behind compute, waiting for other ranks included


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """Steps of several ranks: medians over the steps. Shares of a step's time are 0 to 1."""

    exchange: float  # exchange itself
    waiting: float  # this rank waits for a slower one
    holding: float  # the others wait for this rank, on average
    slowest: int | None  # rank that is the slowest in most steps; None if none is
    # seconds a step by which the slowest rank is later than this one, or this one than the others
    late: float
    for_data: float  # part of `late` in which the slowest rank waits for its batch, 0 to 1


def compare_ranks(steps: Mapping[int, Mapping[int, RankStep]], rank: int) -> RankTimes | None:
    """Compare the same steps on several ranks, as `rank` sees them; None without others."""
    shared = [step for step in steps.values() if rank in step and len(step) > 1]
    if not shared:
        return None
    slowest = [min(step, key=lambda r: step[r].exchange) for step in shared]
    first, times = Counter(slowest).most_common(1)[0]
    named = first if 2 * times > len(shared) else None
    exchange, waiting, holding, late, data = [], [], [], [], []
    for step, last in zip(shared, slowest, strict=True):
        own, theirs = step[rank], step[last]
        exchange.append(theirs.exchange / own.seconds)
        waiting.append((own.exchange - theirs.exchange) / own.seconds)
        others = [each for r, each in step.items() if r != last]
        held = median(each.exchange for each in others) - theirs.exchange
        holding.append(held / own.seconds if last == rank else 0.0)
        late.append(held if last == rank else own.exchange - theirs.exchange)
        beside = median(each.waited for each in others) if last == rank else own.waited
        data.append(theirs.waited - beside)
    lateness = median(late)
    return RankTimes(
        exchange=median(exchange),
        waiting=median(waiting),
        holding=median(holding),
        slowest=named,
        late=lateness,
        for_data=min(1.0, max(0.0, median(data) / lateness)) if lateness > 0 else 0.0,
    )
