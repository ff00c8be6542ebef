"""Time that ranks spend on the plan, each for itself or together by a shared folder."""

import tempfile
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.ranks.packs import draw
from datapipe.loader.schedule.block_cache import BlockFolder, PlannedBlocks
from datapipe.plan import EpochPlan, PlanOptions, Position, Source, Units, walk
from datapipe.plan.options import BLOCK

RANKS = 1024
RATE = 200  # samples a second of a rank
_BLOCKS = 12
_TOGETHER = 4  # processes that share a folder here
_PATIENCE = 300.0  # seconds for them


class Walked(NamedTuple):
    """CPU seconds of a rank: for each block that it planned, for each that it read, and the rest.

    The rest is what it takes to cut a block into steps and to take the own share of each.
    """

    planned: list[float]
    read: list[float]
    steps: float


def planning(capacity: int, image_tokens: int, ranks: int = RANKS) -> Iterator[dict[str, object]]:
    """Yield the share of a core that planning takes a rank of so many, by who shares a folder."""
    context = get_context("spawn")
    job = partial(_walk, capacity=capacity, image_tokens=image_tokens, ranks=ranks)
    with tempfile.TemporaryDirectory() as folder, context.Pool(_TOGETHER) as pool:
        alone = pool.apply_async(job, (None,)).get(_PATIENCE)
        shared = pool.map_async(job, [Path(folder)] * _TOGETHER).get(_PATIENCE)
    plan = median(alone.planned)
    save = median([second for rank in shared for second in rank.planned])
    read = median([second for rank in shared for second in rank.read])
    steps = median([rank.steps / _BLOCKS for rank in shared])
    again = sum(len(rank.planned) for rank in shared) - len(alone.planned)
    for name, sharing in (("none", 1), ("8, of a machine", 8), (f"{ranks:,}", ranks)):
        first = plan if sharing == 1 else save
        mean = (first + (sharing - 1) * read) / sharing + steps
        yield {
            "ranks that share it": name,
            "plan a block, ms": round(1e3 * first, 1),
            "read it, ms": round(1e3 * read, 2) if sharing > 1 else None,
            "steps of it, ms": round(1e3 * steps, 2),
            "of a core a rank, %": round(100 * mean * ranks * RATE / BLOCK, 2),
            "planned twice": again if sharing > 1 else None,
        }


def _walk(folder: Path | None, *, capacity: int, image_tokens: int, ranks: int) -> Walked:
    """Go through an epoch as a rank does."""
    sizes = draw(_BLOCKS * BLOCK, capacity, image_tokens)
    options = PlanOptions(shuffle=True, seed=0, pack=capacity, group=ranks)
    source = Source.of_dataset(len(sizes.tokens), options, measure=sizes.__getitem__)
    plan = EpochPlan(source, options, 0)
    blocks = _Timed(plan, BlockFolder(folder, "ranks") if folder else None)
    plan.form(0)
    began = time.thread_time()
    for step in walk(blocks, Position(0), share=ranks):
        step.share(units_per_rank=1, rank=0, world_size=ranks)
    spent = time.thread_time() - began
    times = blocks.planned + blocks.read
    return Walked(blocks.planned, blocks.read, spent - sum(times))


class _Timed(PlannedBlocks):
    """Blocks that note how long each took, and who planned it."""

    def __init__(self, plan: EpochPlan, folder: BlockFolder | None) -> None:
        super().__init__(plan, folder, ahead=False)
        self.planned: list[float] = []
        self.read: list[float] = []
        self._forms = 0
        form = plan.form

        def counted(block: int) -> Units:
            self._forms += 1
            return form(block)

        plan.form = counted  # type: ignore[method-assign]

    def __call__(self, block: int, before: int) -> Units:
        if self._current is not None and self._current[:2] == (block, before):
            return self._current[2]
        forms, began = self._forms, time.thread_time()
        units = super().__call__(block, before)
        spent = time.thread_time() - began
        (self.planned if self._forms > forms else self.read).append(spent)
        return units
