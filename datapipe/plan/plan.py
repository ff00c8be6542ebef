"""What an epoch consists of: a global sequence of units, cut into steps, dealt to ranks last.

A unit is a sample here. Workers, caches and world size do not enter before `step`, so the global
order is the same for all of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from datapipe.errors import PlanError
from datapipe.plan.order import Int64, Permutation
from datapipe.plan.rng import derive

PLAN_VERSION = 1
"""Changes whenever equal options would give another order than before."""

BLOCK = 65_536
"""Units that are planned together; a position is a block and a unit inside it."""

_ORDER = 1  # purpose of a derived key


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options that the global order depends on.

    Attributes:
        shuffle: a new order each epoch, or the order of the dataset.
        seed: of the order.
        drop_last: leave out a last step that not all ranks can fill.
    """

    shuffle: bool
    seed: int
    drop_last: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one rank does in one step.

    Attributes:
        samples: int64 [batch], numbers of samples.
        valid: bool [batch]; false where a unit is repeated so that all ranks have equal steps.
        start, stop: global positions of the step, in units; `stop - start` of them are valid over
            all ranks.
    """

    samples: Int64
    valid: npt.NDArray[np.bool_]
    start: int
    stop: int


class EpochPlan:
    """The plan of one epoch over a dataset of `samples` samples."""

    def __init__(self, samples: int, options: PlanOptions, epoch: int) -> None:
        self.samples = samples
        self.epoch = epoch
        key = derive(options.seed, epoch, _ORDER)
        self._drop_last = options.drop_last
        self._order = Permutation(samples, key) if options.shuffle else None

    def units(self, start: int, stop: int) -> Int64:
        """The units at global positions `start` to `stop`: int64 sample numbers."""
        positions = np.arange(start, stop, dtype=np.int64)
        return self._order(positions) if self._order else positions

    def steps_left(self, position: int, *, share: int) -> int:
        """Steps from `position` to the end of the epoch, when each takes `share` units globally."""
        left = self.samples - position
        return left // share if self._drop_last else -(-left // share)

    def step(self, position: int, *, batch_size: int, rank: int, world_size: int) -> Step:
        """The step that begins at a global position, as `rank` sees it.

        Units are dealt to ranks in turn. Where they run out, the step's own units are repeated,
        marked as not valid.
        """
        stop = min(position + batch_size * world_size, self.samples)
        units = self.units(position, stop)
        slots = np.arange(batch_size, dtype=np.int64) * world_size + rank
        return Step(
            samples=units[slots % len(units)],
            valid=slots < len(units),
            start=position,
            stop=stop,
        )


def check_ranks(rank: int, world_size: int) -> None:
    """Refuse impossible ranks.

    Raises:
        PlanError: `world_size` is below 1, or `rank` is not in `0 ... world_size - 1`.
    """
    if world_size < 1:
        raise PlanError(f"world_size {world_size}: at least one rank is needed")
    if not 0 <= rank < world_size:
        raise PlanError(
            f"rank {rank} is not among the {world_size} ranks 0 to {world_size - 1}; "
            "check RANK and WORLD_SIZE, or what was given as rank= and world_size="
        )
