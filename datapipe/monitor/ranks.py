"""Samples of the same steps on all ranks, through the store of the process group.

A rank that waits for a slower one looks as if it exchanged data. Only the ranks together tell the
two apart: the slowest rank of a step waits for no other, so its exchange is that of the data. Each
rank writes its samples to the store and reads those of the others when it is asked for a report.
This is no collective, so no rank waits for another.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from datapipe.diagnosis.step_figures import RankStep, RankTimes, compare_ranks
from datapipe.monitor.step_sample import StepSample

logger = logging.getLogger(__name__)

_MOST_RANKS = 256  # whose samples are read; more would take the store of a large run too long
_FAILED = (
    "waiting for a slow rank counts as exchange, as the store of the process group failed; ask for "
    "reports before the rank that holds it ends"
)
_NUMBERS = itertools.count()


class RankSamples:
    """Samples of the ranks of a process group, by number of the turn.

    Monitors are told apart by their order, so every rank makes the same ones.
    """

    def __init__(self) -> None:
        self._number = next(_NUMBERS)

    def write(self, samples: Sequence[StepSample]) -> None:
        found = _store()
        if found is None:
            return
        store, rank, _ = found
        steps = [(s.turn, s.seconds, s.waited, s.exchange) for s in samples]
        try:
            store.set(self._key(rank), json.dumps(steps))
        except Exception as error:
            logger.warning(
                "other ranks cannot see the step times of this one: %s: %s", _FAILED, error
            )

    def compare(self) -> RankTimes | None:
        """Compare the samples of all ranks, as this one sees them; None without other ranks."""
        found = _store()
        if found is None:
            return None
        store, own, world_size = found
        steps: defaultdict[int, dict[int, RankStep]] = defaultdict(dict)
        try:
            for rank in {own, *range(min(world_size, _MOST_RANKS))}:
                key = self._key(rank)
                for turn, *times in json.loads(store.get(key)) if store.check([key]) else []:
                    steps[turn][rank] = RankStep(*times)
        except Exception as error:
            logger.warning("step times of other ranks cannot be read: %s: %s", _FAILED, error)
        return compare_ranks(steps, own)

    def _key(self, rank: int) -> str:
        return f"datapipe-monitor-{self._number}-{rank}"


def _store() -> tuple[Any, int, int] | None:
    """Return the store of the process group, this rank and the world size.

    None without other ranks, and with a torch before 2.7, which does not give it out.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    group, world_size = distributed.group.WORLD, distributed.get_world_size()
    if world_size < 2 or not hasattr(group, "get_group_store"):
        return None
    return group.get_group_store(), distributed.get_rank(), world_size
