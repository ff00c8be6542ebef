"""Steps of an epoch: the sequence of units, cut and dealt to the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from datapipe.array_types import Bools, Int64
from datapipe.errors import PlanError, StateMismatch
from datapipe.plan.units import Units


@dataclass(frozen=True, slots=True)
class Position:
    """Position of the next unit of an epoch.

    Examples:
        >>> Position(epoch=2, block=1, unit=5, before=100).consumed
        105
    """

    epoch: int
    block: int = 0
    unit: int = 0  # its number in the block
    before: int = 0  # units of the epoch before the block

    @property
    def consumed(self) -> int:
        """Number of units of the epoch before this position."""
        return self.before + self.unit


class Blocks(Protocol):
    """Blocks of one epoch."""

    epoch: int
    count: int

    def __call__(self, block: int, before: int) -> Units:
        """Return a block's units, laid out for `before` units of the epoch before it."""
        ...


@dataclass(frozen=True)
class Exclusion:
    """Samples and units that are left out of an order that stays as it is."""

    # int64, ascending; numbers of samples
    samples: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    # By epoch, ranges (start, stop) of units, counted from the epoch's start
    units: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def of_units(self, epoch: int, start: int, stop: int) -> Bools:
        """Return which units from `start` to `stop` of an epoch are left out: bool."""
        out = np.zeros(stop - start, bool)
        for first, end in self.units.get(epoch, ()):
            out[max(first - start, 0) : max(end - start, 0)] = True
        return out

    def mark(self, units: Units, out: Bools) -> Bools:
        """Return which samples of these units are left out, given the units that are: bool [n]."""
        marked = np.repeat(out, np.diff(units.offsets))
        return marked | np.isin(units.numbers, self.samples) if len(self.samples) else marked


NOTHING = Exclusion()


@dataclass(frozen=True, kw_only=True)
class Share:
    """Units of one rank in a step: n samples in k units.

    Examples:
        >>> units = datapipe.plan.Units(np.arange(3), np.arange(4), None)
        >>> start, stop = Position(epoch=0), Position(epoch=0, unit=3)
        >>> step = Step(units=units, start=start, stop=stop, excluded=np.zeros(3, bool))
        >>> step.share(units_per_rank=2, rank=1, world_size=2).valid
        array([ True, False])
    """

    units: Units  # `units.samples` is int64 [n]
    # bool [n]; false in a unit that is repeated so that all ranks have equal steps, and for a
    # sample that was left out
    valid: Bools
    excluded: Bools  # bool [n]; the sample was left out, and need not be read


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of all ranks.

    Examples:
        >>> units = datapipe.plan.Units(np.arange(6), np.arange(7), None)
        >>> start, stop = Position(epoch=0), Position(epoch=0, unit=6)
        >>> step = Step(units=units, start=start, stop=stop, excluded=np.zeros(6, bool))
        >>> [step.share(units_per_rank=3, rank=rank, world_size=2).units.samples for rank in (0, 1)]
        [array([0, 2, 4]), array([1, 3, 5])]
    """

    units: Units  # of all ranks
    start: Position
    stop: Position  # of the unit behind its last
    excluded: Bools  # by sample: it was left out
    labels: int | None = None  # tokens predicted over all ranks; None if none were counted
    tokens: int | None = None  # over all ranks, likewise
    last: bool = False  # the epoch ends with it

    def share(self, *, units_per_rank: int, rank: int, world_size: int) -> Share:
        """Return the units of `rank`: they are dealt in turn, and repeated once they run out."""
        count = len(self.units)
        if world_size == 1 and count == units_per_rank:
            return Share(units=self.units, valid=~self.excluded, excluded=self.excluded)
        slots = np.arange(units_per_rank, dtype=np.int64) * world_size + rank
        numbers = slots % count
        units = self.units.take(numbers)
        excluded = self.excluded[self.units.places(numbers)]
        valid = np.repeat(slots < count, np.diff(units.offsets)) & ~excluded
        return Share(units=units, valid=valid, excluded=excluded)


def walk(
    blocks: Blocks,
    position: Position,
    *,
    share: int,
    drop_last: bool = False,
    exclusion: Exclusion = NOTHING,
) -> Iterator[Step]:
    """Yield the steps from a position to the end of the epoch, each of the next `share` units.

    A step is skipped if everything in it is excluded.

    Examples:
        >>> from datapipe.plan import EpochPlan, PlanOptions, Source
        >>> options = PlanOptions(shuffle=True, seed=0)
        >>> plan = EpochPlan(Source.of_dataset(10, options), options, epoch=0)
        >>> class PlannedBlocks:
        ...     epoch, count = 0, plan.blocks
        ...     def __call__(self, block, before):
        ...         return plan.lay_out(plan.form(block), block, before)
        >>> [len(step.units.samples) for step in walk(PlannedBlocks(), Position(0), share=4)]
        [4, 4, 2]
    """
    held: Step | None = None  # the last step is known once no other follows
    while (cut := _cut(blocks, position, share)) is not None:
        units, stop = cut
        if drop_last and len(units) < share:
            break
        out = exclusion.of_units(position.epoch, position.consumed, position.consumed + len(units))
        excluded = exclusion.mark(units, out)
        if not out.all():
            if held is not None:
                yield held
            sizes = units.sizes
            held = Step(
                units=units,
                start=position,
                stop=stop,
                excluded=excluded,
                labels=int(sizes.labels[~excluded].sum()) if sizes else None,
                tokens=int(sizes.tokens[~excluded].sum()) if sizes else None,
            )
        position = stop
    if held is not None:
        yield replace(held, last=True)


def steps_in(
    units: int,
    *,
    share: int,
    drop_last: bool,
    exclusion: Exclusion = NOTHING,
    epoch: int = 0,
    consumed: int = 0,
) -> int:
    """Count the steps of an epoch of `units` units, after the first `consumed` of them."""
    units -= consumed
    steps = units // share if drop_last else -(-units // share)
    left_out = 0
    merged: list[list[int]] = []  # ranges of units that are left out, without overlap
    for first, end in sorted(exclusion.units.get(epoch, ())):
        first, end = max(first - consumed, 0), end - consumed
        if merged and first <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        elif end > 0:
            merged.append([first, end])
    for first, end in merged:
        stop = steps if end >= units else min(steps, end // share)
        left_out += max(0, stop + -first // share)
    return steps - left_out


def _cut(blocks: Blocks, position: Position, share: int) -> tuple[Units, Position] | None:
    """Return the next units, at most `share`, and their end; None at the end of the epoch."""
    parts: list[Units] = []
    missing = share
    block, unit, before = position.block, position.unit, position.before
    while missing and block < blocks.count:
        units = blocks(block, before)
        if unit >= len(units):
            raise StateMismatch(
                f"the state names unit {unit} of block {block}, which has {len(units)}; it was "
                "changed after it was saved"
            )
        stop = min(unit + missing, len(units))
        parts.append(units.between(unit, stop))
        missing -= stop - unit
        if stop == len(units):
            block, unit, before = block + 1, 0, before + len(units)
        else:
            unit = stop
    if not parts:
        return None
    return Units.join(parts), Position(position.epoch, block, unit, before)


def check_ranks(rank: int, world_size: int) -> None:
    """Raise PlanError if `world_size` is below 1, or `rank` is not in `0 ... world_size - 1`."""
    if world_size < 1:
        raise PlanError(f"world_size {world_size}: at least one rank is needed")
    if not 0 <= rank < world_size:
        raise PlanError(
            f"rank {rank} is not among the {world_size} ranks 0 to {world_size - 1}; "
            "check RANK and WORLD_SIZE, or what was given as rank= and world_size="
        )
