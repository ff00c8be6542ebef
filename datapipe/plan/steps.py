"""Cuts the sequence of units into steps, and deals each step to the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from datapipe.errors import PlanError, StateMismatch
from datapipe.plan.ragged import Int64
from datapipe.plan.units import Units

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Position:
    """The next unit of an epoch.

    Attributes:
        epoch: number of the epoch.
        block, unit: number of the block, and of the unit in it.
        before: units of the epoch before the block.
    """

    epoch: int
    block: int = 0
    unit: int = 0
    before: int = 0

    @property
    def consumed(self) -> int:
        """Units of the epoch that lie before."""
        return self.before + self.unit


class Blocks(Protocol):
    """The blocks of one epoch."""

    epoch: int
    count: int

    def __call__(self, block: int, before: int) -> Units:
        """A block's units, laid out for `before` units of the epoch before it."""
        ...


@dataclass(frozen=True)
class Exclusion:
    """What is left out of an order that stays as it is.

    Attributes:
        samples: int64, ascending; numbers of samples.
        units: by epoch, ranges (start, stop) of units, counted from the epoch's start.
    """

    samples: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    units: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def of_units(self, epoch: int, start: int, stop: int) -> Bools:
        """Which of the units `start` to `stop` of an epoch are left out."""
        out = np.zeros(stop - start, bool)
        for first, end in self.units.get(epoch, ()):
            out[max(first - start, 0) : max(end - start, 0)] = True
        return out

    def mark(self, units: Units, out: Bools) -> Bools:
        """Which samples of some units are left out, given the units that are: bool [n]."""
        marked = np.repeat(out, np.diff(units.offsets))
        return marked | np.isin(units.samples, self.samples) if len(self.samples) else marked


NOTHING = Exclusion()


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one rank takes in a step, n samples in k units.

    Attributes:
        units: the units; `units.samples` is int64 [n].
        valid: bool [n]; false where a unit is repeated so that all ranks have equal steps, and
            where a sample was left out.
        excluded: bool [n]; the sample was left out, so nobody needs to read it.
    """

    units: Units
    valid: Bools
    excluded: Bools


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of all ranks.

    Attributes:
        units: the units of all ranks.
        start, stop: positions of its first unit and of the unit behind its last.
        excluded: bool, by sample: it was left out.
        labels: tokens that are predicted in it, over all ranks; None where none were counted.
        tokens: tokens in it, over all ranks, likewise.
        last: whether the epoch ends with it.
    """

    units: Units
    start: Position
    stop: Position
    excluded: Bools
    labels: int | None
    tokens: int | None
    last: bool

    def share(self, *, units_per_rank: int, rank: int, world_size: int) -> Share:
        """What `rank` takes: units are dealt in turn, and repeated where they run out."""
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
    """The steps from a position to the end of the epoch, each of the next `share` units.

    A step of which everything is excluded does not come.
    """
    held: Step | None = None
    while True:
        cut = _cut(blocks, position, share)
        if cut is None:
            break
        units, stop = cut
        if drop_last and len(units) < share:
            break
        out = exclusion.of_units(position.epoch, position.consumed, position.consumed + len(units))
        excluded = exclusion.mark(units, out)
        if not out.all():
            if held is not None:
                yield held
            held = _step(units, position, stop, excluded)
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
    """Number of steps of an epoch of so many units, after the first `consumed` of them."""
    units -= consumed
    steps = units // share if drop_last else -(-units // share)
    left_out = 0
    ranges = [
        (max(first - consumed, 0), end - consumed)
        for first, end in exclusion.units.get(epoch, ())
        if end > consumed
    ]
    for first, end in _merged(ranges):
        stop = steps if end >= units else min(steps, end // share)
        left_out += max(0, stop + -first // share)
    return steps - left_out


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges without overlap, in order, from some that may overlap or touch."""
    merged: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return merged


def _cut(blocks: Blocks, position: Position, share: int) -> tuple[Units, Position] | None:
    """The next units, at most `share`, and where they end; None at the end of the epoch."""
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


def _step(units: Units, start: Position, stop: Position, excluded: Bools) -> Step:
    sizes = units.sizes
    return Step(
        units=units,
        start=start,
        stop=stop,
        excluded=excluded,
        labels=int(sizes.labels[~excluded].sum()) if sizes else None,
        tokens=int(sizes.tokens[~excluded].sum()) if sizes else None,
        last=False,
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
