"""Progress of one rank in an epoch whose units are samples, without walking through its steps."""

from __future__ import annotations

import numpy as np

from datapipe.loader.schedule.block_cache import PlannedBlocks
from datapipe.loader.schedule.run_schedule import Schedule
from datapipe.plan.steps import Position


def count_left(schedule: Schedule, begin: Position) -> int:
    """Return the samples that this rank takes from a position to the epoch's end, once each."""
    options = schedule.options
    left = schedule.count_units(begin.epoch) - begin.consumed
    if schedule.plan.drop_last:
        left -= left % options.share
    return len(range(options.rank, left, options.world_size))


def position_after(schedule: Schedule, begin: Position, taken: int) -> Position:
    """Return the position once this rank, and so every other one, has taken some samples.

    After the last sample of this rank, it is the beginning of the next epoch.
    """
    if not taken:
        return begin
    if taken >= count_left(schedule, begin):
        return Position(begin.epoch + 1)
    unit = begin.consumed + taken * schedule.options.world_size
    return locate_sample(schedule.blocks(begin.epoch), unit)


def locate_sample(blocks: PlannedBlocks, unit: int) -> Position:
    """Return the position of a sample, counted from the beginning of an epoch that has it."""
    edges = blocks.plan.edges
    block = int(np.searchsorted(edges, unit, side="right")) - 1
    before = int(edges[block])
    return Position(blocks.epoch, block, unit - before, before)
